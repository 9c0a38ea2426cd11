"""docs/records.md: its programs run."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import scenario_messages
import torch

from torch_tfrecord import TFRecordWriter

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")


def test_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "scenario_pb2", scenario_messages)
    Path("data").mkdir()
    shutil.copy(DOCS.parent / "tests" / "data" / "ranking" / "elwc.tfrecord", "data/lists.tfrecord")
    with TFRecordWriter("data/scenarios.tfrecord") as writer:
        for number in range(4):
            message = scenario_messages.Scenario(
                scenario_id=f"s{number}", timestamps_seconds=[0.5] * number
            )
            writer.write(message.SerializeToString())
    text = (DOCS / "records.md").read_text(encoding="utf-8")
    lists, jagged, nested, messages = re.findall(
        r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    names = {}
    exec(lists, names)
    assert names["context"] == {"query": ["learning", "gbdt", "none", ""]}
    assert names["examples"]["score"].tolist() == [
        [0.5, 1, -1],
        [0.25, -1, -1],
        [-1, -1, -1],
        [-1, 2, -1],
    ]
    assert names["examples"]["mask"].sum(1).tolist() == [2, 1, 0, 3]
    assert names["examples"]["words"][0] == [[b"tf"], [b"learning", b"to", b"rank"], []]
    exec(jagged, names)
    assert names["examples"]["score"].shape == (4, 4)
    assert names["examples"]["score"][3].tolist() == [-1, 2, -1, -1]
    assert names["examples"]["mask"].sum(1).tolist() == [2, 1, 0, 4]
    exec(nested, names)
    assert names["batch"]["user"]["age"].tolist() == [30, 30]
    assert names["ages"].tolist() == [30]
    exec(messages, names)
    assert names["padded"]["id"] == ["s0", "s1", "s2", "s3"]
    assert names["padded"]["times"].equal(0.5 * torch.ones(4, 3).tril(-1))
