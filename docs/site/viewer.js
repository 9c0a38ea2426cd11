// The viewer of docs/viewer.md: reads TFRecord files in the browser, a few records at a time. What a record holds is
// shown as text (textContent) or as a picture in <img>, never interpreted, and goes nowhere: the only requests are
// those for ranges of the address that the user gives. A classic script, as file:// pages load no modules.
(() => {
"use strict";
const PAGE = 10, PAGE_BYTES = 1 << 20; // records, and bytes of payloads: a page ends early rather than read more
const WHOLE = 1 << 18, PART = 1 << 14; // of a payload above the first, the second many bytes are read, until one asks
const MOST_HELD = 1 << 26; // bytes: of a payload, of an index, of a file whose server knows no ranges
const SEARCHED = 1 << 24; // bytes searched behind damage for the next header, until one asks
const MOST_PIXELS = 1e8, MOST_ROWS = 300; // of the pictures that are drawn on a page; of a record's table
const SHORT = {numbers: 8, strings: 3, steps: 4, text: 60, hex: 12}; // as `tfrecord show` prints
const LONG = {numbers: 2000, strings: 60, steps: 200, text: 20000, hex: 4000};
// Framing: length (8 bytes), its masked CRC-32C, payload, its masked CRC-32C.
const CRC = Uint32Array.from({length: 256}, (_, n) =>
  [0, 1, 2, 3, 4, 5, 6, 7].reduce((crc) => (crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1), n));
function crc32c(bytes, crc = 0) {
  crc = ~crc;
  for (let i = 0; i < bytes.length; i++) crc = (crc >>> 8) ^ CRC[(crc ^ bytes[i]) & 255];
  return ~crc >>> 0;
}
const mask = (crc) => (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
const isHeader = (bytes, at = 0) => at + 12 <= bytes.length &&
  view(bytes).getUint32(at + 8, true) === mask(crc32c(bytes.subarray(at, at + 8)));
const fail = (text) => { throw new Error(text); };
const lengthAt = (bytes, at = 0) => view(bytes).getBigUint64(at, true);

// The bytes of a file, by ranges.
const fileBytes = (file) => ({name: file.name, size: file.size,
  read: async (begin, end) => new Uint8Array(await file.slice(begin, end).arrayBuffer())});
class UrlBytes {
  size = Infinity; // until an answer tells, or the bytes end
  constructor(url) { Object.assign(this, {url, name: new URL(url).pathname.split("/").pop() || url}); }
  ask(options) {
    const quiet = {credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store"};
    return fetch(this.url, {...quiet, ...options}).catch((error) => {
      if (error.name === "AbortError") throw error;
      fail("no answer that this page may read: nobody answers there, the server does not allow other sites to read it " +
        "(CORS), or it is http: and this is https:. Allow it as said below, or download the file and drop it here");
    });
  }
  async read(begin, end, signal) {
    if (this.whole) return this.whole.subarray(begin, end);
    if (begin >= this.size) return new Uint8Array();
    const answer = await this.ask({headers: {Range: `bytes=${begin}-${end - 1}`}, signal}), {status} = answer;
    const told = /^bytes (?:(\d+)-\d+|\*)\/(\d+)$/.exec(answer.headers.get("Content-Range"));
    if (![200, 206, 416].includes(status)) fail(`expected the status 206 (a range of the file), got ${status}`);
    if (status === 206 && told && Number(told[1]) !== begin) fail(`expected bytes from ${begin} on, got ${told[0]}`);
    if (told && status !== 200) this.setSize(Number(told[2]));
    if (status === 416) { this.size = Math.min(this.size, begin); return new Uint8Array(); } // nothing is there
    const found = await take(answer, status === 200 ? MOST_HELD : end - begin);
    if (status === 200) { // a server without ranges
      if (found.length > MOST_HELD) fail("expected the status 206, got 200: the server ignores `Range` and sends all " +
        `of the file, above ${formatSize(MOST_HELD)}. Use another server, or download the file and drop it here`);
      Object.assign(this, {whole: found, size: found.length});
      return found.subarray(begin, end);
    }
    if (this.size === Infinity && !this.isAsked) await this.askSize(signal);
    const missing = Math.min(end, this.size) - begin - found.length;
    if (missing > 0 && this.size < Infinity) fail(`expected ${end - begin} bytes, got ${found.length}`);
    if (missing > 0) this.size = begin + found.length;
    return found.subarray(0, end - begin);
  }
  async askSize(signal) { // Content-Range may be hidden from the page, Content-Length never is
    this.isAsked = true;
    const head = await this.ask({method: "HEAD", signal}).catch((error) => error);
    signal?.throwIfAborted();
    const length = head.ok && !head.headers.get("Content-Encoding") && head.headers.get("Content-Length");
    if (length) this.setSize(Number(length));
  }
  setSize(size) {
    if (this.size < Infinity && size !== this.size) fail(`expected a file of ${this.size} bytes, it now has ${size}`);
    this.size = size;
  }
}
async function take(answer, most) { // a body's bytes, little more than `most` of them
  const chunks = [], reader = answer.body.getReader();
  for (let part, length = 0; length <= most && !(part = await reader.read()).done;)
    length += chunks[chunks.push(part.value) - 1].length;
  await reader.cancel();
  return join(chunks);
}
function join(chunks) {
  const all = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) { all.set(chunk, at); at += chunk.length; }
  return all;
}
class Buffered { // holds the bytes that were read last, and reads some ahead
  constructor(raw) { Object.assign(this, {raw, begin: 0, bytes: new Uint8Array()}); }
  get size() { return this.raw.size; }
  async get(begin, end, signal, ahead = 1 << 16) {
    let held = this.begin + this.bytes.length;
    if (begin < this.begin || begin > held) Object.assign(this, {begin: held = begin, bytes: new Uint8Array()});
    if (end > held && held < this.size) {
      const read = await this.raw.read(held, Math.min(Math.max(end, held + ahead), this.size), signal);
      Object.assign(this, {bytes: join([this.bytes.subarray(begin - this.begin), read]), begin});
    }
    return this.bytes.subarray(begin - this.begin, end - this.begin);
  }
}
// A decompressed stream. It goes forward; to go back it begins again at the last gzip member that it knows. The
// browser decompresses one member, and refuses what follows. So members are told apart here: a header begins one if
// the four bytes before it are the number of bytes that came out of the last.
class Inflated {
  size = Infinity; slowFrom = Infinity; members = [{raw: 0, out: 0}];
  constructor(file, format) { Object.assign(this, {file, format}); this.restart(this.members[0]); }
  restart(from) {
    const {raw: at, out: begin} = from, last = new Uint8Array();
    Object.assign(this, {from, at, begin, end: begin, chunks: [], member: null, failed: "", last});
  }
  async get(begin, end, signal) {
    const from = this.members.findLast((member) => member.out <= begin);
    if (begin < this.begin || from.out > this.end) this.restart(from);
    for (;;) {
      while (this.chunks.length && this.begin + this.chunks[0].length <= begin) this.begin += this.chunks.shift().length;
      if (this.end >= end || this.failed || this.end >= this.size) break;
      signal?.throwIfAborted();
      await this.pump(signal);
    }
    this.chunks = [join(this.chunks)];
    return this.chunks[0].subarray(Math.max(0, begin - this.begin), Math.max(0, end - this.begin));
  }
  async pump(signal) {
    const step = this.at >= this.slowFrom ? 1 : Math.min(1 << 14, this.slowFrom - this.at);
    const bytes = await this.file.get(this.at, this.at + step + 3, signal, 1 << 17);
    let count = Math.min(bytes.length, step), isEnd = bytes.length <= step;
    for (let i = 0; this.format === "gzip" && i < count; i++) {
      if (bytes[i] !== 0x1f || bytes[i + 1] !== 0x8b || bytes[i + 2] !== 8 || this.at + i < this.from.raw + 18) continue;
      if (i) { count = i; isEnd = false; break; } // up to it first
      const isOther = () => view(this.last).getUint32(0, true) !== (this.end - this.from.out) % 2 ** 32;
      for (let tries = 0; tries < 20 && isOther(); tries++) await pause(); // what was written comes out
      if (isOther()) continue;
      if (await this.close()) this.from = {raw: this.at, out: this.end};
      if (this.from.raw > this.members.at(-1).raw) this.members.push(this.from);
      return;
    }
    this.member ??= this.open();
    try { if (count) await this.member.writer.write(bytes.slice(0, count)); } catch (error) {
      if (step === 1) return this.fail(error);
      this.slowFrom = this.at; // once more, there in steps of a byte: what comes out of a damaged step is lost
      return this.restart(this.from);
    }
    this.last = join([this.last, bytes.slice(0, count)]).slice(-4);
    this.at += count;
    if (isEnd && await this.close()) this.size = this.end;
  }
  open() {
    const {readable, writable} = new DecompressionStream(this.format), member = {writer: writable.getWriter()};
    member.pulled = readable.pipeTo(new WritableStream({write: (part) => {
      if (this.member === member) this.end += this.chunks[this.chunks.push(part) - 1].length; // else it was begun again
    }}));
    for (const promise of [member.pulled, member.writer.closed]) promise.catch(() => {}); // write and close tell
    return member;
  }
  async close() { // says whether all was right
    try { await this.member.writer.close(); await this.member.pulled; } catch (error) { this.fail(error); }
    return !(this.member = null) && !this.failed;
  }
  fail({message}) { this.failed = `damaged ${this.format} data near byte ${this.at} of the file: ${message}`; }
}
async function openBytes(raw, signal) { // a record's header decides: a plain file may begin as gzip does
  const file = new Buffered(raw), first = await file.get(0, 12, signal);
  if (isHeader(first)) return file;
  if (first[0] === 0x1f && first[1] === 0x8b && first[2] === 8) return new Inflated(file, "gzip");
  const isZlib = first.length > 1 && (first[0] & 15) === 8 && first[0] < 128 && (first[0] * 256 + first[1]) % 31 === 0;
  return isZlib ? new Inflated(file, "deflate") : file;
}

// Records.
// The record at a byte, null at the end; `next` is the byte behind it, NaN if unknown, null at the end. Of a payload
// of more than `most` bytes the first PART are read, and not checked.
async function readRecord(source, at, most, signal, tell) {
  const record = {at, length: 0, payload: new Uint8Array(), isChecked: false, error: "", next: null};
  const damaged = (error, next) => Object.assign(record, {error: source.failed || error, next});
  const header = await source.get(at, at + 12, signal);
  if (!header.length && !source.failed) return null;
  if (header.length < 12) return damaged(`truncated header: ${header.length} of 12 bytes`, null);
  const length = lengthAt(header), hint = at ? "" : " (Is this a TFRecord file? Snappy is not read here.)";
  const sum = mask(crc32c(header.subarray(0, 8))), found = view(header).getUint32(8, true);
  const text = `expected length checksum ${hex(sum)} (of length ${length}), got ${hex(found)}${hint}`;
  if (sum !== found) return damaged(`corrupted record: ${text}`, NaN);
  record.length = Number(length);
  const isAll = record.length <= most, next = at + 16 + record.length, end = isAll ? next - 4 : at + 12 + PART, kept = [];
  const truncated = (left) => damaged(
    `truncated record: expected ${length + 16n} bytes (payload ${length}), got ${left} up to the end`, NaN);
  if (next > source.size) return truncated(source.size - at);
  let crc = 0, bytes;
  for (let from = at + 12; from < end; from += bytes.length, tell?.(from - at - 12)) {
    bytes = await source.get(from, Math.min(from + (1 << 20), end), signal, isAll ? 1 << 18 : 0);
    if (!bytes.length || next > source.size) return truncated(from + bytes.length - at);
    if (from - at < PART || record.length <= MOST_HELD) kept.push(bytes.slice());
    crc = isAll ? crc32c(bytes, crc) : 0;
  }
  Object.assign(record, {payload: join(kept), next, isChecked: isAll});
  const footer = isAll ? await source.get(end, next, signal) : new Uint8Array(4);
  if (footer.length < 4) return truncated(end + footer.length - at);
  const expected = mask(crc), stored = view(footer).getUint32(0, true);
  if (isAll && stored !== expected)
    record.error = `corrupted record: expected payload checksum ${hex(expected)}, got ${hex(stored)} (${length} bytes)`;
  return record;
}
// Where the record behind this one begins: null at the end, {from} where the search for it stopped.
async function follow(source, record, signal) {
  if (!record.error || record.next === null) return record.next;
  const header = record.next ? await source.get(record.next, record.next + 12, signal) : [0];
  return isHeader(header) || !header.length ? record.next : search(source, record.at + 1, signal);
}
async function search(source, from, signal) {
  for (let at = from; at < from + SEARCHED;) {
    const bytes = await source.get(at, at + (1 << 18), signal);
    for (let i = 0; i + 12 <= bytes.length; i++) { // no file has 2^48 bytes
      const isOne = !bytes[i + 6] && !bytes[i + 7] && isHeader(bytes, i);
      if (isOne && at + i + 16 + Number(lengthAt(bytes, i)) <= source.size) return at + i;
    }
    if (bytes.length < 12) return null;
    at += bytes.length - 11;
  }
  return {from: from + SEARCHED};
}

// protobuf's wire format. Only the first bytes of a message may be there: what lies behind them is CUT.
const BAD = Symbol("no such message"), CUT = Symbol("not all bytes are there");
function varint(bytes, at, end, most) { // [value, the byte behind it]
  for (let i = 0, value = 0; i < most && at + i < end; i++) {
    if (at + i >= bytes.length) throw CUT;
    value += (bytes[at + i] & 127) * 2 ** (7 * i);
    if (bytes[at + i] < 128) return [value, at + i + 1];
  }
  throw BAD;
}
function* fields(bytes, begin, end, depth) { // number, wire type, and where its content begins and ends
  for (let at = begin, groups = []; at < end || groups.length;) {
    const [tag, from] = varint(bytes, at, end, 5), number = Math.floor(tag / 8), type = tag % 8;
    if (number < 1 || tag >= 2 ** 32 || type > 5) throw BAD;
    let start = from, stop = from + ({1: 8, 5: 4}[type] ?? 0);
    if (type === 0) stop = varint(bytes, from, end, 10)[1];
    if (type === 2) { [stop, start] = varint(bytes, from, end, 5); stop += start; }
    const isOdd = (type === 3 && groups.push(number) > 100 - depth) || (type === 4 && groups.pop() !== number);
    if (isOdd || stop > end) throw BAD;
    if (!groups.length) yield [number, type, start, stop];
    at = stop;
  }
}
// `take` reads the contents of fields 1, 2, ..., which are messages or bytes; says whether there were other fields.
function visit(message, begin, end, depth, ...take) {
  let isOdd = false;
  for (const [number, type, from, to] of fields(message.bytes, begin, end, depth)) {
    if (type === 2 && number <= take.length) take[number - 1](from, to);
    else isOdd = true;
  }
  message.isOdd ||= isOdd;
  return isOdd;
}
const newFeature = (kind = "") => ({kind, count: 0, chunks: []}); // chunks: {bytes, size}, or of encoded numbers
function readFeature(message, feature, begin, end) {
  const {bytes} = message;
  visit(message, begin, end, 4, ...["bytes", "float32", "int64"].map((kind, number) => (from, to) => {
    if (feature.kind !== kind) Object.assign(feature, newFeature(kind)); // the last kind wins
    for (const [one, type, start, stop] of fields(bytes, from, to, 5)) {
      const isKnown = one === 1 && (type === 2 || type === [2, 5, 0][number]), there = bytes.subarray(start, stop);
      message.isOdd ||= !isKnown;
      if (!isKnown) continue;
      if (kind === "float32" && (stop - start) % 4) throw BAD;
      feature.count += [() => 1, () => (stop - start) / 4, () => countVarints(there, stop > bytes.length)][number]();
      feature.chunks.push(kind === "bytes" ? {bytes: there, size: stop - start} : there);
      if (stop > bytes.length) throw CUT;
    }
  }));
}
function countVarints(bytes, isCut) {
  let count = 0, length = 0;
  for (const byte of bytes) {
    if (++length > 10) throw BAD;
    if (byte < 128) [count, length] = [count + 1, 0];
  }
  if (length && !isCut) throw BAD;
  return count;
}
const readSteps = (message, steps, begin, end) => visit(message, begin, end, 4, (from, to) =>
  readFeature(message, steps[steps.push(newFeature()) - 1], from, to));
function readMap(message, map, begin, end, create, read) { // of entries: key 1, value 2
  visit(message, begin, end, 2, (from, to) => {
    let key, value, isOdd = false;
    const set = () => isOdd || map.set(key ?? "", value ?? create()); // protobuf's upb leaves out odd entries, too
    try {
      isOdd = visit(message, from, to, 3, (start, stop) => {
        if (stop > message.bytes.length) throw CUT;
        try { key = utf8(message.bytes.subarray(start, stop)); } catch { throw BAD; }
      }, (start, stop) => read(message, value ??= create(), start, stop));
    } catch (error) {
      if (error === CUT && key !== undefined && value) set();
      throw error;
    }
    message.isOdd ||= key === undefined || !value || map.has(key);
    set();
  });
}
// {context, lists}: name -> feature, or steps; null if the bytes are no Example and no SequenceExample. An Example
// is a SequenceExample without lists: field 1 means the same in both.
function parseMessage(bytes, size = bytes.length) {
  const message = {bytes, context: new Map(), lists: new Map(), isOdd: false, isCut: false};
  try {
    visit(message, 0, size, 0, (begin, end) => readMap(message, message.context, begin, end, newFeature, readFeature),
      (begin, end) => readMap(message, message.lists, begin, end, () => [], readSteps));
  } catch (error) {
    if (error !== BAD && error !== CUT) throw error;
    if (error === BAD) return null;
    message.isCut = true;
  }
  return message;
}
function values(feature, most) { // the first ones: BigInt, number or {bytes, size}
  if (feature.kind === "bytes") return feature.chunks.slice(0, most);
  const found = [], width = feature.kind === "float32" ? 4 : 1;
  for (const chunk of feature.chunks) {
    for (let at = 0; at + width <= chunk.length && found.length < Math.min(most, feature.count);) {
      let value = 0n, shift = 0n;
      if (width === 1) do { value |= BigInt(chunk[at] & 127) << shift; shift += 7n; } while (chunk[at++] > 127);
      else value = view(chunk).getFloat32((at += 4) - 4, true);
      found.push(width === 1 ? BigInt.asIntN(64, value) : value);
    }
  }
  return found;
}

// Pictures, by content.
const FORMATS = {jpeg: /^\xff\xd8\xff/, png: /^\x89PNG\r\n\x1a\n/, gif: /^GIF8[79]a/, webp: /^RIFF[^]{4}WEBP/,
  bmp: /^BM[^]{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0/};
const imageFormat = (bytes) => Object.keys(FORMATS).find((format) =>
  FORMATS[format].test(String.fromCharCode(...bytes.subarray(0, 18))));
const SIDES = { // width and height, as the header says; an error where it ends early
  png: (data) => [data.getUint32(16), data.getUint32(20)],
  gif: (data) => [data.getUint16(6, true), data.getUint16(8, true)],
  bmp: (data) => (data.getUint32(14, true) === 12 ? [data.getUint16(18, true), data.getUint16(20, true)]
    : [data.getInt32(18, true), Math.abs(data.getInt32(22, true))]),
  webp: (data) => {
    const three = (at) => data.getUint16(at, true) + 65536 * data.getUint8(at + 2), packed = data.getUint32(21, true);
    const sides = {X: [three(24) + 1, three(27) + 1], L: [(packed & 0x3fff) + 1, ((packed >>> 14) & 0x3fff) + 1]};
    return sides[String.fromCharCode(data.getUint8(15))] ?? [three(26) & 0x3fff, three(28) & 0x3fff];
  },
  jpeg: (data) => {
    for (let at = 2; ; at++) {
      const marker = data.getUint8(at + 1);
      if (data.getUint8(at) !== 255 || marker < 2 || marker === 255 || (marker > 207 && marker < 217)) continue;
      if (marker === 217 || marker === 218) return [0, 0];
      const isFrame = marker >> 4 === 12 && marker !== 196 && marker !== 200 && marker !== 204;
      if (isFrame) return [data.getUint16(at + 7), data.getUint16(at + 5)];
      at += 1 + data.getUint16(at + 2);
    }
  },
};
function imageSize(bytes, format) { // null if it is damaged
  let sides;
  try { sides = SIDES[format](view(bytes)); } catch { return null; }
  return sides[0] > 0 && sides[1] > 0 ? sides : null;
}

// Text of values, as `tfrecord show` prints them.
const utf8 = (bytes, isCut = false) =>
  new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(bytes, {stream: isCut});
const hex = (value, digits = 8) => `0x${value.toString(16).padStart(digits, "0")}`;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const shown = (count) => count.toLocaleString("en");
function formatSize(bytes, units = ["KB", "MB", "GB", "TB", "PB"]) {
  if (bytes < 1000 && units.length === 5) return plural(bytes, "byte");
  if (bytes >= 999_950 && units[1]) return formatSize(bytes / 1000, units.slice(1));
  return `${(bytes / 1000).toFixed(1)} ${units[0]}`;
}
const escape = (text) => text.replace(/(?! )[\p{C}\p{Z}]/gu, (letter) => {
  const code = letter.codePointAt(0), digits = code < 256 ? 2 : code < 65536 ? 4 : 8;
  return {9: "\\t", 10: "\\n", 13: "\\r"}[code] ?? `\\${{2: "x", 4: "u", 8: "U"}[digits]}${hex(code, digits).slice(2)}`;
});
function readText(bytes, isCut) { // null if it is no UTF-8, or not printable
  let text;
  try { text = utf8(bytes, isCut); } catch { return null; }
  return /(?![\t\n\r ])[\p{C}\p{Z}]/u.test(text) ? null : text;
}
function formatFloat(value) { // Python's .7g
  if (!Number.isFinite(value)) return String(value).replace("NaN", "nan").replace("Infinity", "inf");
  const [exact, power] = Math.abs(value).toExponential(40).split("e"); // a tie goes to the even digit
  if (/^50*$/.test(exact.slice(8)) && exact[7] % 2 === 0) value = Math.sign(value) * `${exact.slice(0, 8)}e${power}`;
  const [digits, exponent] = value.toExponential(6).split("e");
  const strip = (text) => text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  if (exponent >= -4 && exponent < 7) return (Object.is(value, -0) ? "-" : "") + strip(value.toFixed(6 - exponent));
  return `${strip(digits)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}
function describeBytes({bytes, size}, most) {
  const format = imageFormat(bytes), text = format ? null : readText(bytes, bytes.length < size);
  if (format) return `${format} ${imageSize(bytes, format)?.join("x") ?? "(damaged)"}, ${formatSize(size)}`;
  if (text !== null) {
    const letters = [...text.slice(0, 2 * most.text + 2)], isCut = letters.length > most.text || bytes.length < size;
    const start = letters.slice(0, most.text).join("").replaceAll("\\", "\\\\");
    return `"${escape(start).replaceAll('"', '\\"')}${isCut ? `..." (${formatSize(size)})` : '"'}`;
  }
  const digits = Array.from(bytes.subarray(0, most.hex), (byte) => hex(byte, 2).slice(2)).join("");
  return `0x${digits}${size > most.hex ? "..." : ""} (${formatSize(size)})`;
}
const countOf = (feature) => feature.length ?? feature.count;
function describe(feature, most) {
  const found = feature.length !== undefined ? feature.slice(0, most.steps).map((step) => `[${describe(step, most)}]`)
    : feature.kind === "bytes" ? values(feature, most.strings).map((value) => describeBytes(value, most))
      : values(feature, most.numbers).map(feature.kind === "int64" ? String : formatFloat);
  return [...found, ...(countOf(feature) > found.length ? ["..."] : [])].join(", ");
}
function kindOf(feature) { // "-" where there is nothing, which has no kind
  if (feature.length === undefined) return feature.count || feature.kind !== "bytes" ? feature.kind || "-" : "-";
  return [...new Set(feature.map(kindOf))].filter((kind) => kind !== "-").sort().join("/") || "-";
}
function describeRecord(payload, size) { // {kind, rows: [{name, kind, count, feature}]}
  const message = parseMessage(payload, size), {context, lists} = message ?? {};
  // protobuf takes most short texts, and other messages, for an Example without values.
  const hasValues = message && [...context.values(), ...lists.values()].some((feature) => kindOf(feature) !== "-");
  if (!message || (!hasValues && (message.isOdd || message.isCut))) return {kind: "no Example", rows: []};
  const rows = (map, what) => [...map].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, feature]) =>
    ({name: escape(what + name), kind: kindOf(feature), count: countOf(feature), feature}));
  if (!lists.size) return {kind: `Example, ${plural(context.size, "feature")}`, rows: rows(context, "")};
  return {kind: `SequenceExample, ${plural(context.size, "context feature")}, ${plural(lists.size, "feature list")}`,
    rows: [...rows(context, "context "), ...rows(lists, "list ")]};
}
// The offsets in an index dropped beside the file: tfrecord2idx's lines of offset and size, or our safetensors.
async function readIndex(file) {
  try {
    const text = (begin, end) => file.slice(begin, Math.min(end, begin + MOST_HELD)).text();
    if (file.name.endsWith(".idx"))
      return BigInt64Array.from((await text(0, file.size)).trimEnd().split("\n"), (line) => BigInt(line.split(" ")[0]));
    const length = Number(lengthAt(new Uint8Array(await file.slice(0, 8).arrayBuffer())));
    const {dtype, data_offsets: [begin, end]} = JSON.parse(await text(8, 8 + length)).offsets;
    if (dtype === "I64") return new BigInt64Array(await file.slice(8 + length + begin, 8 + length + end).arrayBuffer());
  } catch { /* said below */ }
  return fail(`${escape(file.name)}: expected an index: lines of offset and size, or safetensors`);
}

// The page.
const pause = () => new Promise((resolve) => setTimeout(resolve));
const append = (node, children) => { node.append(...children); return node; }; // strings become text, whatever they say
const make = (tag, options, ...children) => append(Object.assign(document.createElement(tag), options), children);
function start(root) {
  let job, running, state, pixels, urls = [];
  const bad = (text) => make("p", {className: "error"}, text);
  const button = (text, onclick) => make("button", {type: "button", onclick}, text);
  const ask = (label, options, text, submit) => {
    const input = make("input", {required: true, ...options});
    return make("form", {onsubmit: (event) => { event.preventDefault(); submit(input.value.trim()); }},
      make("label", {}, label, input), make("button", {}, text));
  };
  const link = (at, n) => `#${new URLSearchParams({url: state.url, ...(n === null ? {byte: at} : {record: n})})}`;
  const picker = make("input", {type: "file", multiple: true, onchange: () => openFiles([...picker.files])});
  picker.onclick = () => { picker.value = ""; }; // the same file may be chosen again
  const status = make("span", {role: "status"}), cancel = button("cancel", () => job.abort());
  const say = (text, isError) => Object.assign(status, {textContent: text, className: isError ? "error" : ""});
  const about = make("p", {}), cards = make("div", {}), previous = button("← previous", () => run(back));
  const next = button("next →", () => run((signal) => show(state.next, signal)));
  const bar = make("div", {className: "bar"}, previous, next,
    ...["record", "byte"].map((name) => ask(`${name} `, {name, inputMode: "numeric", pattern: "[0-9]{1,15}"}, "go",
      (text) => run((signal) => find({[name]: text}, signal)))), make("span", {}, status, " ", cancel));
  root.replaceChildren(
    make("div", {className: "drop"}, make("label", {}, "Drop a TFRecord file here, or choose one: ", picker),
      ask("or open an address: ", {type: "url", name: "url", placeholder: "https://host/train.tfrecord"}, "open",
        (url) => { location.hash = new URLSearchParams({url}); openLink(); })), about, bar, cards);
  cancel.hidden = previous.disabled = next.disabled = true;
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); openFiles([...event.dataTransfer.files]); });
  addEventListener("hashchange", openLink);
  openLink();
  function run(task) { // one at a time: a new one ends the one before
    job?.abort();
    const {signal} = job = new AbortController(), before = running;
    cancel.hidden = false;
    say("reading ...");
    running = (async () => {
      await before;
      const told = await Promise.resolve(signal).then(task).then(() => "", (error) => error.message);
      if (signal === job.signal) { say(signal.aborted ? "cancelled" : told, told && !signal.aborted); cancel.hidden = true; }
    })();
  }
  function openFiles(files) {
    const index = files.find((file) => /\.(idx|safetensors)$/.test(file.name));
    const data = files.find((file) => file !== index);
    if (!data) return;
    history.replaceState(null, "", location.pathname + location.search);
    run((signal) => open(fileBytes(data), index, {}, signal));
  }
  function openLink() {
    const {url, ...goal} = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    if (!url) return;
    root.querySelector("[name=url]").value = url;
    run((signal) => (state?.url === url ? find(goal, signal) : /^https?:\/\/[^/]/i.test(url)
      ? open(new UrlBytes(url), null, goal, signal) : fail("expected an address that begins with https:// or http://")));
  }
  async function open(raw, indexFile, goal, signal) {
    for (const node of [cards, about]) node.replaceChildren();
    [state, next.disabled, previous.disabled] = [null, true, true];
    const source = await openBytes(raw, signal), index = indexFile && await readIndex(indexFile);
    state = {source, raw, url: raw.url, index, marks: [{at: 0, n: 0}], name: escape(raw.name)};
    await find(goal, signal);
    about.textContent = [state.name, raw.size < Infinity ? formatSize(raw.size) : "of unknown size",
      ...(source.format ? ["compressed: pages are read from the beginning on, none by itself"] : []),
      ...(index ? [`${shown(index.length)} records, by ${escape(indexFile.name)}`] : [])].join(" · ");
  }
  async function show({at, n}, signal, most = PAGE) {
    let held = 0, record = null, after = at, found = [];
    while (found.length < most && held < PAGE_BYTES && typeof after === "number") {
      record = await readRecord(state.source, after, WHOLE, signal);
      after = record && await follow(state.source, record, signal);
      signal.throwIfAborted();
      if (record) held += found.push([record, n === null ? n : n + found.length]) && record.payload.length;
    }
    for (pixels = 0; urls.length;) URL.revokeObjectURL(urls.pop());
    cards.replaceChildren(...found.map(([record, n]) => card(record, n)));
    if (!found.length) cards.append(make("p", {}, "no records here: this is the end of the file"));
    if (after?.from) cards.append(bad(`no record in ${formatSize(SEARCHED)} behind the damage: go on at byte ${after.from}`));
    state.first = {at, n};
    state.next = typeof after === "number" ? {at: after, n: n === null ? n : n + found.length} : null;
    [next.disabled, previous.disabled] = [!state.next, at === 0];
    if (state.next?.n > state.marks.at(-1).n) state.marks.push(state.next);
    if (state.url) history.replaceState(null, "", link(at, n));
  }
  function back(signal) { // without a number, to the first record of the bytes before
    const {first: {at, n}, source} = state, byte = Math.max(0, Math.min(at, source.size) - WHOLE);
    return n === null ? find({byte}, signal) : find({record: Math.max(0, n - PAGE)}, signal, Math.min(PAGE, n));
  }
  async function find({byte, record = 0}, signal, most) {
    if (!state) fail("open a file first");
    const {source, index, marks} = state, wanted = Number(byte ?? record);
    if (!Number.isSafeInteger(wanted) || wanted < 0) fail("expected a record or byte, a number from 0 on");
    if (byte !== undefined) {
      const at = wanted && await search(source, wanted, signal);
      if (typeof at !== "number") fail(`no record begins at byte ${wanted} or ${at ? "soon " : ""}behind it`);
      return show(marks.find((mark) => mark.at === at) ?? {at, n: null}, signal);
    }
    if (index) {
      if (wanted >= index.length) fail(`expected a record below ${index.length}, got ${wanted}`);
      const at = Number(index[wanted]), header = await source.get(at, at + 12, signal);
      if (!isHeader(header)) fail(`the index is of another file: no record at byte ${at}`);
      return show({at, n: wanted}, signal, most);
    }
    let {at, n} = marks.findLast((mark) => mark.n <= wanted), told = performance.now();
    for (; n < wanted; n++) { // from header to header
      const header = await source.get(at, at + 12, signal, at / n < 1 << 15 ? 1 << 20 : 1 << 12);
      const damaged = isHeader(header) ? null : await readRecord(source, at, 0, signal);
      at = isHeader(header) ? at + 16 + Number(lengthAt(header)) : damaged && await follow(source, damaged, signal);
      if (!(at < source.size) || at === null) fail(`expected a record below ${n + 1 - !header.length}, got ${wanted}`);
      if (n % 1000 === 999 && n >= marks.at(-1).n) marks.push({at, n: n + 1});
      if (performance.now() < told + 50) continue;
      say(`passed record ${shown(n)} at ${formatSize(at)}`);
      await pause();
      signal.throwIfAborted();
      told = performance.now();
    }
    return show({at, n}, signal, most);
  }
  function card(record, n) {
    const {kind, rows} = record.error ? {kind: "damaged", rows: []} : describeRecord(record.payload, record.length);
    const node = make("section", {className: record.error ? "damaged" : ""}, make("p", {className: "title"},
      make(state.url ? "a" : "b", state.url ? {href: link(record.at, n)} : {}, n === null ? "record" : `record ${n}`),
      `, byte ${record.at}, ${plural(record.length, "byte")}, `, make("span", {className: "kind"}, kind)));
    const all = [{bytes: record.payload, size: record.length}];
    if (record.error) node.append(bad(`${state.name}: record ${n ?? "?"} at byte ${record.at}: ${record.error}`));
    else if (kind === "no Example") node.append(...cell({kind: "bytes", count: 1, chunks: all}));
    const row = ({name, kind, count, feature}) => make("tr", {}, make("th", {}, name), make("td", {}, kind),
      make("td", {}, String(count)), make("td", {}, ...cell(feature)));
    if (rows.length) node.append(make("table", {className: "features"}, ...rows.slice(0, MOST_ROWS).map(row)));
    if (rows.length > MOST_ROWS) node.append(bad(`${rows.length - MOST_ROWS} more features are not shown`));
    if (record.payload.length === record.length || record.error) return node;
    const read = async (signal) => node.replaceWith(card(await readRecord(state.source, record.at, Infinity, signal,
      (done) => say(`read ${formatSize(done)} of ${formatSize(record.length)}`)), n));
    const note = `The first ${formatSize(record.payload.length)} of ${formatSize(record.length)} are shown, the payload's `;
    node.append(make("p", {}, note, record.isChecked ? "checksum is right." : "checksum was not checked. ",
      ...(record.isChecked ? [] : [button("read all and check it", () => run(read))])));
    return node;
  }
  function cell(feature) { // pictures, values, and a button for more of them
    const pictures = make("div", {className: "pictures"}), text = make("span", {className: "values"});
    const draw = (most) => {
      const steps = [feature].flat().slice(0, most.steps).filter((step) => step.kind === "bytes");
      pictures.replaceChildren(...steps.flatMap((step) => values(step, most.strings).flatMap(picture)));
      text.textContent = describe(feature, most);
    };
    draw(SHORT);
    const more = button("more", () => { draw(LONG); more.remove(); });
    return [pictures, text, ...(describe(feature, LONG) === text.textContent ? [] : [" ", more])];
  }
  function picture({bytes, size}) {
    const format = imageFormat(bytes), sides = format && imageSize(bytes, format);
    if (!sides || bytes.length < size) return [];
    if (pixels + sides[0] * sides[1] > MOST_PIXELS) return bad(`too many pixels to draw: ${sides.join("x")}`);
    pixels += sides[0] * sides[1];
    urls.push(URL.createObjectURL(new Blob([bytes], {type: `image/${format}`})));
    const image = make("img", {alt: "", onerror: () => image.replaceWith(bad("does not decode")), src: urls.at(-1)});
    return image;
  }
}
const api = {openBytes, readRecord, follow, parseMessage, describeRecord, describe, describeBytes, values, UrlBytes, SHORT};
if (typeof module === "object") module.exports = api; // for the tests
else if (document.getElementById("tfrecord-viewer")) start(document.getElementById("tfrecord-viewer"));
})();
