// The arrow keys turn pages, unless somebody is writing.
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.altKey || event.ctrlKey || event.metaKey) return;
  const rel = {ArrowLeft: "prev", ArrowRight: "next"}[event.key];
  const link = rel && document.querySelector(`a[rel="${rel}"]`);
  if (link) location.href = link.href;
});
