"""The folder that `export --hub-layout` writes is a data set for `datasets` and `mlcroissant`."""

import hashlib
import json

import pytest

import recombine
from recombine.cli.main import run as run_verb
from recombine.integrations.exchange.cards import write_hub_layout
from recombine.integrations.exchange.export import COLUMNS, hash_export, make_rows

TASK = recombine.SRaven(num_features=2, num_values=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "data-set"
    write_hub_layout(TASK, ["train", "ood"], 7, path, rows_per_shard=4)
    return path


def test_shards_card_and_metadata_agree(folder):
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    shards = [f"data/{split}-{number:05}-of-00002.parquet" for split in ("ood", "train") for number in (0, 1)]
    assert names == ["README.md", "croissant.json", *shards]
    described = json.loads((folder / "croissant.json").read_text())
    for file in described["distribution"]:
        assert file["sha256"] == hashlib.sha256((folder / file["contentUrl"]).read_bytes()).hexdigest()
    assert sum(name.startswith("rai:") for name in described) >= 8
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    for shown in (TASK.split.certificate.sha256, hash_export(TASK), "| `num_values` | 4 |", *COLUMNS):
        assert shown in card


def test_hugging_face_datasets_loads_every_split(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 7, "ood": 7}
    expected = make_rows(TASK, ["ood"], 7).to_pylist()
    assert loaded["ood"][:]["row_id"] == [row["row_id"] for row in expected]
    assert loaded["ood"][6]["inputs"] == expected[6]["inputs"]
    assert str(loaded["ood"].features["inputs"]).count("float32") == 1


def test_croissant_reads_every_shard_without_complaint(folder, caplog):
    mlcroissant = pytest.importorskip("mlcroissant")
    found = mlcroissant.Dataset(str(folder / "croissant.json"))
    assert not found.metadata.issues.errors
    assert not found.metadata.issues.warnings
    assert "not standard" not in caplog.text
    rows = list(found.records("ood-00001-of-00002"))
    expected = make_rows(TASK, ["ood"], 7).to_pylist()[4:]
    assert [row["ood-00001-of-00002/row_id"].decode() for row in rows] == [row["row_id"] for row in expected]
    assert [list(row["ood-00001-of-00002/target"]) for row in rows] == [row["target"] for row in expected]


def test_the_command(tmp_path, capsys):
    flags = ["export", "fuzzy-logic", "--hub-layout", "--blind", "--num-instances", "2", "-o", str(tmp_path / "new")]
    assert run_verb([*flags, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["rows"], len(value["shards"])) == (6, 3)
    assert "target" not in (tmp_path / "new" / "croissant.json").read_text()
    assert run_verb(flags) == 2
    assert "is not empty: expected a new or empty folder" in capsys.readouterr().err
    assert run_verb([*flags, "--format", "text"]) == 2
    assert "expected it without --format text" in capsys.readouterr().err
