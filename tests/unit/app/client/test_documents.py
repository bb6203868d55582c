"""Declarative files: what can be read, in which order it is applied, and what applying reports."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import pytest

from app.client.documents import Declared, DocumentOutcome, apply_document, delete_document, read_documents
from app.marked import UnreadableError
from headroom_client import Client
from solvers.errors import InputError

SERVICE = "kind: service\nproject: p\nname: a\n"


def test_documents_come_in_order_of_dependence(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("model\n")
    (tmp_path / "a.yaml").write_text(f"{SERVICE}---\nkind: profiles\nfile: points.csv\n---\nkind: node\nid: n\n")
    (tmp_path / "b.json").write_text('[{"kind": "project", "name": "p"}, {"kind": "gpu-type", "name": "t4"}]')
    (tmp_path / "c.txt").write_text("not ours")
    found = read_documents([str(tmp_path)])
    assert [document.label for document in found] == ["project/p", "gpu-type/t4", "node/n", "profiles", "service/p/a"]
    assert found[3].csv == "model\n"


def test_aliases_are_values_and_bombs_are_none(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{SERVICE}x: &x {{b: [1, 2]}}\ny: *x\n")
    (document,) = read_documents([str(file)])
    assert document.fields["y"] == {"b": [1, 2]}
    lines = [f"x{level}: &x{level} [{', '.join(9 * [f'*x{level - 1}'])}]" for level in range(1, 9)]
    file.write_text("\n".join([f"{SERVICE}x0: &x0 [1]", *lines]))
    with pytest.raises(InputError, match=r"a\.yaml: more than 2000000 values"):
        read_documents([str(file)])
    file.write_text(f"{SERVICE}x: &x [*x]\n")
    with pytest.raises(InputError, match="an alias stands within what it stands for"):
        read_documents([str(file)])
    file.write_text(SERVICE + "x: " + 3000 * "[")
    with pytest.raises(InputError):
        read_documents([str(file)])


@pytest.mark.parametrize(
    ("text", "word"), [("hello", "text"), ("3", "a number"), ("true", "true or false"), ("[[1]]", "a list")]
)
def test_what_is_no_object_is_called_as_its_writer_calls_it(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=f"got {word}$"):
        read_documents([str(file)])


def test_words_that_yaml_1_1_took_for_booleans_are_words(tmp_path: Path) -> None:
    """One of them is a mode, and countries are good labels."""
    file = tmp_path / "a.yaml"
    file.write_text(f"{SERVICE}mode: off\nlabels: {{country: no}}\nflags: [true, False, yes]\n")
    (document,) = read_documents([str(file)])
    assert document.fields["mode"] == "off"
    assert document.fields["labels"] == [{"key": "country", "value": "no"}]
    assert document.fields["flags"] == [True, False, "yes"]


def test_more_than_can_be_checked_is_told_before_it_is_read(tmp_path: Path) -> None:
    """The last of them cannot be read, which nobody finds out."""
    many = "".join(f"---\n# one\nkind: project\nname: p{number}\n" for number in range(2000))
    (tmp_path / "a.yaml").write_text(many)
    (tmp_path / "b.yaml").write_text("---\n---\n# nothing\n---\nkind: [\n")
    with pytest.raises(InputError) as raised:
        read_documents([str(tmp_path)], checked=True)
    assert raised.value.message.startswith(
        "2,001 documents are more than the 2,000 that are checked at once: apply them in parts"
    )
    with pytest.raises(UnreadableError):
        read_documents([str(tmp_path / "b.yaml")], checked=True)


def test_what_is_not_checked_together_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"---\n{SERVICE}" + "---\nkind: profiles\npoints: []\n" * 2000)
    assert len(read_documents([str(tmp_path)], checked=True)) == 2001


def test_documents_of_a_json_file_are_read_without_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are for complaints: they take a hundred times as long to find as what stands there."""
    (tmp_path / "a.json").write_text(json.dumps([{"kind": "project", "name": f"p{number}"} for number in range(3)]))

    def composed(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr("app.marked._composed", composed)
    assert len(read_documents([str(tmp_path / "a.json")])) == 3


@pytest.mark.parametrize(
    "text",
    [
        "{kind: project, name: a}\n---\n{kind: project, name: b}\n",
        "[{kind: project, name: a}, {kind: project, name: b,}]",
        '{"kind": project, "name": a}\n---\nkind: project\nname: b\n',
        "\n  [ # of two\n  {kind: project, name: a}, {kind: project, name: b}]\n",
    ],
)
def test_yaml_between_brackets_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert [document.label for document in read_documents([str(tmp_path / "f.yaml")])] == ["project/a", "project/b"]


def test_long_json_that_is_none_is_not_read_as_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a hundred times as long."""

    def read(text: str, origin: str, line: int) -> None:
        raise AssertionError(text)

    monkeypatch.setattr("app.marked._read", read)
    (tmp_path / "a.json").write_text(
        json.dumps([{"kind": "project", "name": f"p{number}"} for number in range(9999)])[:-1]
    )
    with pytest.raises(UnreadableError, match=r"a\.json:1: Expecting ',' delimiter$"):
        read_documents([str(tmp_path / "a.json")])


def test_a_document_that_stands_twice_is_told_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"kind": "project", "name": "p"},\n{"kind": "project", "name": "p"}]')
    (tmp_path / "b.yaml").write_text("\nkind: project\nname: p\n")
    with pytest.raises(UnreadableError) as raised:
        read_documents([str(tmp_path)])
    first = f"project/p is already declared in {tmp_path}/a.json:1"
    assert raised.value.lines == (f"{tmp_path}/a.json:2: {first}", f"{tmp_path}/b.yaml:2: {first}")


def test_a_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(10 * 2**20)
    with pytest.raises(InputError, match=r"a\.yaml: larger than 4 MiB, which is the most"):
        read_documents([str(file)])
    monkeypatch.setattr("sys.stdin", io.StringIO("#" * (4 * 2**20 + 1)))
    with pytest.raises(InputError, match="standard input: larger than 4 MiB"):
        read_documents(["-"])


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SERVICE))
    (document,) = read_documents(["-"])
    assert (document.origin, document.fields) == ("standard input", {"project": "p", "name": "a"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\n", "`kind` is missing"),
        ("kind: pod\nname: a\n", "unknown kind 'pod'"),
        ("- just\n- words\n", "expected an object"),
        ("kind: [unclosed\n", "expected ',' or ']'"),
        ('[\n{"kind": "node" "id": "n"}]', "f.yaml:2: Expecting ',' delimiter"),
        ("{kind: node,\nid: n", "f.yaml:2: expected ',' or '}'"),
        ("{kind: node, kind: node}", "f.yaml:1: kind: already said on line 1"),
        ('{"kind": node, "kind": node}', "f.yaml:1: kind: already said on line 1"),
        ('{"kind": "node"} {"kind": "node"}', "f.yaml:1: Extra data"),
        ("kind: profiles\n", "either `file`"),
        ("kind: profiles\nfile: gone.csv\n", "gone.csv: no such file"),
        (f"{SERVICE}---\n{SERVICE}", "already declared"),
        # In words of ours, not of those who read it.
        ("a: " + "[" * 5000 + "]" * 5000, "too many values inside each other"),
        ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "too many values inside each other"),
        ("a: " + "1" * 5000, "a whole number of too many digits"),
        ('{"a": ' + "1" * 5000 + "}", "a whole number of too many digits"),
        ("? [a, b]\n: 1\n", "a key is a text or a number"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_documents([str(file)])
    assert message in caught.value.message
    assert "f.yaml" in caught.value.message
    assert all(line.startswith(str(file)) for line in caught.value.message.splitlines())


def test_what_cannot_be_read_hides_no_other_document(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    kept = [SERVICE.replace("name: a", f"name: {name}") for name in "abc"]
    wrong = ["kind: [unclosed\n", "kind: pod\nname: a\n", "kind: node\nid: a\nid: b\n"]
    texts = [text for pair in zip(kept, wrong, strict=True) for text in pair]
    file.write_text("---\n".join(texts))
    with pytest.raises(UnreadableError) as caught:
        read_documents([str(file), str(tmp_path / "gone.yaml")])
    assert [document.label for document in caught.value.found] == [
        "service/p/a",
        "service/p/b",
        "service/p/c",
        "node/b",
    ]
    places = [line.removeprefix(f"{file}:").partition(":")[0] for line in caught.value.lines[:-1]]
    starts = [1 + sum(text.count("\n") + 1 for text in texts[:number]) for number in (1, 3, 5)]
    told = sorted(int(place) for place in places)
    assert told[1:] == [starts[1], starts[2] + 2]
    assert starts[0] <= told[0] <= starts[0] + 1
    assert "gone.yaml: no such file" in caught.value.lines[-1]


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_documents([str(tmp_path / "x.yaml")])
    with pytest.raises(InputError, match=r"no \.yaml"):
        read_documents([str(tmp_path)])
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_documents([str(tmp_path)])


class Store:
    """A server with versioned documents and nothing else."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[int, object]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        version, before = self.stored.get(path, (0, None))
        if request.method == "PUT":
            body = json.loads(request.content)
            self.stored[path] = (version if body == before else version + 1, body)
            return httpx.Response(
                201 if before is None else 200, json=body, headers={"ETag": f'"{self.stored[path][0]}"'}
            )
        if before is None:
            return httpx.Response(404, json={"code": "not-found", "detail": f"no {path}"})
        if request.method == "DELETE":
            del self.stored[path]
            return httpx.Response(204)
        return httpx.Response(200, json=before, headers={"ETag": f'"{version}"'})


def test_applying_says_what_it_did() -> None:
    def declared(mode: str) -> Declared:
        return Declared(origin="f", kind="service", fields={"project": "p", "name": "a", "mode": mode})

    with Client("http://x.test", "t", transport=httpx.MockTransport(Store())) as client:
        outcomes = [apply_document(client, declared(mode)) for mode in ("auto", "auto", "off")]
        assert outcomes == [DocumentOutcome.CREATED, DocumentOutcome.UNCHANGED, DocumentOutcome.UPDATED]
        assert delete_document(client, declared("off")) is DocumentOutcome.DELETED
        assert delete_document(client, declared("off")) is DocumentOutcome.ABSENT


def test_profiles_are_imported_and_not_deleted_by_file() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    with Client("http://x.test", "t", transport=httpx.MockTransport(answer)) as client:
        profiles = Declared(origin="f", kind="profiles", fields={}, csv="model,batch\n")
        assert apply_document(client, profiles) is DocumentOutcome.IMPORTED
        with pytest.raises(InputError, match="MODEL/GPU-TYPE"):
            delete_document(client, profiles)
    (request,) = seen
    assert request.headers["Content-Type"] == "text/csv"
    assert request.content == b"model,batch\n"
