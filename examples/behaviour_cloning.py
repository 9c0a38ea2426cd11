"""Train a policy by behaviour cloning on RLDS episodes that this program writes itself, without
TensorFlow.

The task: move a red point to a green one. The policy sees a picture of both and the red point's
position. The episodes come from an expert that walks straight to the goal, with a little noise.
They are written to a directory that TensorFlow Datasets can read, too. Each training sample is an
observation and the next two actions, normalised by the dataset's statistics, as in Octo and
OpenVLA.

    python examples/behaviour_cloning.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from torch_tfrecord import collate, encode_image, tfds

SIZE = 32  # pixels of a picture's side
MAX_SPEED = 0.12  # of a picture's side, in one step
REACHED = 0.06
MAX_STEPS = 25
HORIZON = 2


def draw(points: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    """Pictures uint8 [B, 3, H, W] of points (red) and goals (green), both [B, 2] from 0 to 1."""
    line = (torch.arange(SIZE) + 0.5) / SIZE
    y, x = torch.meshgrid(line, line, indexing="ij")

    def spots(centers: torch.Tensor) -> torch.Tensor:
        distance = (x - centers[:, 0, None, None]) ** 2 + (y - centers[:, 1, None, None]) ** 2
        return (255 * torch.exp(-distance / 0.004)).to(torch.uint8)

    red, green = spots(points), spots(goals)
    return torch.stack([red, green, torch.full_like(red, 40)], 1)


def expert(point: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    way = goal - point
    return way * (MAX_SPEED / way.norm(dim=-1, keepdim=True).clamp(min=MAX_SPEED))


def episode(random: torch.Generator) -> dict[str, object]:
    point, goal = 0.1 + 0.8 * torch.rand(2, 2, generator=random)
    steps = []
    for number in range(MAX_STEPS):
        done = bool((goal - point).norm() < REACHED) or number == MAX_STEPS - 1
        action = expert(point, goal) + 0.02 * torch.randn(2, generator=random)
        picture = draw(point[None], goal[None])[0]
        steps.append(
            {
                "observation": {"image": encode_image(picture, "jpeg", quality=95), "state": point},
                "action": action,
                "reward": float(done),
                "is_first": number == 0,
                "is_last": done,
                "is_terminal": done,
                "language_instruction": "move the red point to the green one",
            }
        )
        if done:
            break
        point = (point + action).clamp(0, 1)
    return {"steps": steps}


def write(directory: Path, num_episodes: int, seed: int) -> None:
    f = tfds.features
    features = {
        "steps": f.Dataset(
            {
                "observation": {
                    "image": f.Image((SIZE, SIZE, 3), encoding_format="jpeg"),
                    "state": f.Tensor((2,), "float32"),
                },
                "action": f.Tensor((2,), "float32"),
                "reward": f.Scalar("float32"),
                "is_first": f.Scalar("bool"),
                "is_last": f.Scalar("bool"),
                "is_terminal": f.Scalar("bool"),
                "language_instruction": f.Text(),
            }
        )
    }
    random = torch.Generator().manual_seed(seed)
    episodes = (episode(random) for _ in range(num_episodes))
    tfds.write(directory, {"train": episodes}, features, name="reach", num_shards=4)


class Policy(nn.Module):
    """From a picture and a position to the next actions, in units of the dataset's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1)
        )
        self.decide = nn.Sequential(nn.Linear(8 * 2 + 2, 64), nn.ReLU(), nn.Linear(64, HORIZON * 2))
        self.register_buffer("line", torch.linspace(-1, 1, SIZE))

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Images uint8 [B, 3, H, W] and states [B, 2] to actions [B, HORIZON, 2]."""
        # where each channel looks
        heat = self.look(image / 255).flatten(2).softmax(-1).unflatten(2, (SIZE, SIZE))
        places = torch.cat(
            [(heat.sum(2) * self.line).sum(-1), (heat.sum(3) * self.line).sum(-1)], 1
        )
        return self.decide(torch.cat([places, state * 2 - 1], 1)).unflatten(1, (HORIZON, 2))


@torch.no_grad()
def success_rate(
    policy: Policy, mean: torch.Tensor, std: torch.Tensor, num_trials: int = 100
) -> float:
    """Share of trials in which the policy reaches the goal."""
    random = torch.Generator().manual_seed(1000)
    points, goals = 0.1 + 0.8 * torch.rand(2, num_trials, 2, generator=random)
    reached = torch.zeros(num_trials, dtype=torch.bool)
    for _ in range(MAX_STEPS):
        actions = policy(draw(points, goals), points)[:, 0] * std + mean
        points = (points + actions.clamp(-MAX_SPEED, MAX_SPEED)).clamp(0, 1)
        reached |= (points - goals).norm(dim=1) < REACHED
    return reached.float().mean().item()


def main() -> None:
    """Write, train, measure."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "reach", "1.0.0")
        write(directory, num_episodes=300, seed=0)
        statistics = tfds.dataset_statistics(directory)
        mean, std = (torch.tensor(statistics["action"][name]) for name in ("mean", "std"))
        dataset = tfds.RLDSDataset(directory, window_size=1, action_horizon=HORIZON)
        print(f"{statistics['num_transitions']} steps in {statistics['num_trajectories']} episodes")
        loader = DataLoader(
            dataset, batch_size=64, shuffle=True, collate_fn=collate, drop_last=True
        )
        policy = Policy()
        print(f"success before: {success_rate(policy, mean, std):.2f}")
        optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
        for epoch in range(4):
            total = 0.0
            for batch in loader:
                observation = batch["observation"]
                found = policy(observation["image"][:, -1], observation["state"][:, -1])
                error = (found - (batch["action"] - mean) / std).square().mean(-1)
                # actions after an episode's last step are padding
                is_real = batch["action_pad_mask"]
                loss = (error * is_real).sum() / is_real.sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch + 1}: loss {total / len(loader):.3f}")
        print(f"success after: {success_rate(policy, mean, std):.2f}")


if __name__ == "__main__":
    main()
