"""Commands about what is declared: get, apply, diff, patch, delete, edit.

What a file says is checked by the API as a whole, then sent; what the API says is shown, faults with file and line.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from app import kinds
from app.cli.looking import changes
from app.cli.options import COUNT_MAX, IntervalS, Server, Token, connect, shortened
from app.cli.output import (
    Cell,
    CommandError,
    Exit,
    Format,
    Output,
    exit_code_of,
    listed,
    rows,
    sentence_of,
    show,
    warn,
    yaml_text,
)
from app.cli.tables import plan_head
from app.client.documents import (
    PROFILES,
    Declared,
    DocumentOutcome,
    apply_document,
    checked,
    delete_document,
    labels_merged,
    read_documents,
    told_near,
    unsayable,
)
from app.kinds import Kind
from app.marked import UnreadableError, read_marked
from headroom_client import ApiError, Client, ClientError, Document, UnreachableError
from solvers.errors import HeadroomError, InputError, did_you_mean

HISTORY_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A kind that nobody declares. `key` names one of it in its route; `parts` is what of one is shown as rows."""

    route: str
    key: tuple[str, ...]
    columns: Sequence[str] | Mapping[str, Cell]
    endless: bool = True
    parts: str = ""
    part_columns: tuple[str, ...] = ()


_WRITTEN: Mapping[str, _Written] = {
    "profile": _Written(
        route="profiles",
        key=("model", "gpu_type"),
        columns=("model", "gpu_type", "points", "imported_at"),
        endless=False,
        parts="points",
        part_columns=(
            "model", "gpu_type", "batch", "share_pct_sm", "clock_mhz_sm", "latency_ms_mean", "latency_ms_p99",
            "memory_mib", "power_w", "neighbours",
        ),
    ),
    "plan": _Written(
        route="plans",
        key=("id",),
        columns=("id", "lane", "state", "generation", "planner", "cost_usd_per_h", "unplaced_count", "created_at"),
        parts="plan.assignments",
        part_columns=(
            "replica", "device", "model", "share_pct_sm", "memory_mib_limit", "batch", "latency_ms_planned",
            "capacity_rps", "power_w_planned",
        ),
    ),
    "cycle": _Written(
        route="cycles",
        key=("id",),
        columns=("id", "lane", "state", "started_at", "planner", "elapsed_ms", "generation", "decision.reasons"),
    ),
    "event": _Written(
        route="events", key=(),
        columns={"at": "at", "name": "name", "actor": lambda item: item.get("actor_name") or item["actor"],
                 "subject": "subject"},
    ),
}  # fmt: skip


def get(
    names: Annotated[
        list[str],
        typer.Argument(
            help="KIND, or KIND KEY, e.g. services, or service vision/resnet50. "
            "Profiles, plans, cycles and events can be read, too; events SUBJECT are those of one subject."
        ),
    ],
    output: Output = Format.TABLE,
    *,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n", "--limit", min=1, max=COUNT_MAX, help=f"List so many; default: all, {HISTORY_SHOWN} of a history."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("-l", "--label", metavar="KEY[=VALUE]", help="Only what has this label; with all of several."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Then print what changes, until Ctrl-C.")] = False,
    interval_s: IntervalS = 2.0,
    looks: Annotated[int, typer.Option(help="Stop --watch after so many; 0: never.", min=0, hidden=True)] = 0,
    server: Server = None,
    token: Token = None,
) -> None:
    """Print one document or list all of a kind, newest first in a history. `-o yaml` prints what `apply` reads."""
    written = _written(names[0].partition("/")[0])
    with connect(server, token) as client:
        if written is not None:
            words = [*names[0].split("/", 1)[1:], *names[1:]]
            if watch or labels:
                raise InputError(f"--watch and --label are for {', '.join(kinds.names())}")
            _get_written(client, written, words, limit, output)
            return
        listing = len(names) == 1 and "/" not in names[0]
        kind, key = (kinds.named(names[0]), ()) if listing else kind_and_key(names)
        if labels and not (listing and kind.labelled):
            with_labels = ", ".join(kind.plural for kind in kinds.KINDS if kind.labelled)
            raise InputError(f"--label chooses among {with_labels}")
        if not listing and kind.key[0] == "project" and "/".join(names).count("/") == 1:
            # As `explain` has it: a name that only one project uses needs no project.
            named = list(client.items(kind.plural))
            homes = {item["project"] for item in named if item["name"] == key[1]}
            if not homes and "/" not in "".join(names[1:]):
                near = did_you_mean(key[1], {item["name"] for item in named})
                raise CommandError(f"no project has a {kind.name} {shortened(key[1])}{near}", Exit.NOT_FOUND)
            key = (homes.pop() if len(homes) == 1 else key[0], key[1])
        # Looks at the first few only could not tell what was deleted from what moved down.
        look = partial(_found, client, kind, key, None if watch else limit, labels)
        known = look()
        items = known[:limit]
        files = [_as_file(kind, item) for item in items]
        show(files if listing else files[0], output, _table(kind, items, output), goes_on=watch)
        for changed in changes(kind, look, known, interval_s, looks) if watch else ():
            show([_as_file(kind, item) for item in changed], output, _table(kind, changed, output), goes_on=True)


def _found(
    client: Client, kind: Kind, key: tuple[str, ...], limit: int | None, labels: list[str] | None
) -> list[Document]:
    if key:
        with told_near(client, kind, key):
            return [client.get(kind.name, *key).body]
    return list(islice(client.items(kind.plural, label=labels or None), limit))


def kind_and_key(names: Sequence[str]) -> tuple[Kind, tuple[str, ...]]:
    """A document's kind and key from words such as `service vision/resnet50`, with the default project where none is
    named. Raises InputError when the key has another shape.
    """
    first, *rest = [part for name in names for part in name.split("/")] or [""]
    kind, key = kinds.named(first), tuple(rest)
    expected = kind.key
    if len(key) == len(expected) - 1 and expected[0] == "project":
        key = (kinds.DEFAULT, *key)
    if len(key) != len(expected) or not all(rest) or not {".", ".."}.isdisjoint(rest):
        got = shortened("/".join(rest)) if any(rest) else "nothing"
        raise InputError(f"a {kind.name} is named {'/'.join(expected).upper()}, got {got}")
    return kind, key


def _written(word: str) -> _Written | None:
    """What is read but never declared; None for declared kinds. Raises InputError naming all kinds."""
    wanted = word.strip().lower()
    for name, written in _WRITTEN.items():
        if wanted in (name, written.route):
            return written
    try:
        kinds.named(word)
    except InputError:
        known = did_you_mean(word, (*kinds.names(), *_WRITTEN), all_known=True)
        raise InputError(f"unknown kind {word!r}{known}") from None
    return None


def _get_written(client: Client, written: _Written, words: Sequence[str], limit: int | None, output: Format) -> None:
    if words and written.key:
        item = client.call("GET", _path(written, words)).body
        shown: Any = item
        for part in written.parts.split(".") if written.parts else ():
            shown = shown[part]
        lines = listed(written.part_columns or written.columns, shown if written.parts else [item])
        show(item, output, [*plan_head(item), lines] if written.route == "plans" else lines)
        return
    most = limit or (HISTORY_SHOWN if written.endless else None)
    subject = "/".join(words) or None
    items = list(islice(client.items(written.route, subject=subject, limit=most), most))
    show(items, output, listed(written.columns, items))


def _path(written: _Written, words: Sequence[str]) -> str:
    """Where one of it is. Raises InputError when the key has another shape."""
    key = [part for word in words for part in word.split("/")]
    if len(key) != len(written.key) or not all(key):
        named = "/".join(written.key).upper()
        got = shortened("/".join(words)) if any(words) else "nothing"
        raise InputError(f"one of {written.route} is named {named}, got {got}")
    return "/".join(("/v1", written.route, *(quote(part, safe=":") for part in key)))


def _as_file(kind: Kind, item: Document) -> Document:
    return {"kind": kind.name, **item}


def _table(kind: Kind, items: Sequence[Document], output: Format = Format.TABLE) -> Any:
    """The usual columns; wide or as CSV also every other field that is a number, a word or a list of words."""
    usual = (*kind.key, *kind.listed)
    if output not in (Format.WIDE, Format.CSV):
        return listed(usual, items)
    every = [(name, part) for item in items for name, part in item.items()]
    inside = [(name, each) for name, part in every for each in (part if isinstance(part, list) else [None])]
    deep = {name for name, part in (*every, *inside) if isinstance(part, dict)}
    deep |= {name for name, part in inside if isinstance(part, list)}
    return listed((*usual, *(name for name in dict(every) if name not in (*usual, *deep))), items)


Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--file", help="YAML or JSON file, folder, or - for standard input; repeatable.", show_default=False
    ),
]
Words = Annotated[list[str] | None, typer.Argument(hidden=True)]


def apply(
    words: Words = None,
    files: Files = None,
    output: Output = Format.TABLE,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be created, updated or unchanged.")
    ] = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Make the server hold these documents; says what was created, updated or unchanged.

    All of them are checked before the first is sent: one that is wrong leaves everything as it was.
    """
    if words:
        raise InputError(f"files are named with -f: headroom apply {' '.join(f'-f {word}' for word in words)}")
    documents = _read_or_judged(files, server, token)
    with connect(server, token) as client:
        found = checked(client, documents)
        judged = [document for document in documents if document.kind != PROFILES]
        for document, line in zip(judged, found or [], strict=found is not None):
            _warn(document, line["warnings"])
        _refuse(judged, found or [])
        if dry_run:
            if found is None:
                raise CommandError("the server is too old to check documents", Exit.USAGE)
            _show_lines([{"document": _label(line), "outcome": line["outcome"]} for line in found], output)
            return
        _each(client, documents, apply_document, output)


def _warn(document: Declared, warnings: Iterable[Mapping[str, Any]]) -> None:
    for warning in warnings:
        complaint = document.complaint(warning["pointer"], warning["detail"])
        typer.echo(f"warning: {complaint} ({warning['code']})", err=True)


def _label(line: Document) -> str:
    return "/".join((line["kind"], *line["key"]))


def _refuse(documents: Sequence[Declared], found: Sequence[Document], but: str = "") -> None:
    """Name everything that is wrong with documents, `but` faults of one code. Raises CommandError when anything is."""
    refused = [
        (document, line) for document, line in zip(documents, found, strict=bool(found)) if line["outcome"] == "refused"
    ]
    for document, line in refused:
        for fault in (fault for fault in line["faults"] if fault["code"] != but):
            typer.echo(f"headroom: {document.complaint(fault['pointer'], fault['detail'])} ({fault['code']})", err=True)
    if refused:
        codes = {fault["code"] for _, line in refused for fault in line["faults"]}
        only = Exit.REFUSED if codes == {"forbidden"} else Exit.NOT_FOUND if codes == {"not-found"} else Exit.USAGE
        raise CommandError(f"{len(refused)} of {len(found)} documents are refused; nothing was sent", only)


def diff(files: Files = None, output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Show what applying files would change, field by field; exit status 1 when anything would."""
    documents = [document for document in _read_or_judged(files, server, token) if document.kind != PROFILES]
    with connect(server, token) as client:
        found = checked(client, documents)
    if found is None:
        raise CommandError("the server is too old to compare documents", Exit.USAGE)
    _refuse(documents, found)
    lines = [{"document": _label(line), "outcome": line["outcome"], "changes": line["changes"]} for line in found]
    changed = [line for line in lines if line["outcome"] != "unchanged"]
    told = [
        (line["document"], change["pointer"], change["before"], change["after"])
        for line in changed
        for change in line["changes"] or [{"pointer": "", "before": None, "after": line["outcome"]}]
    ]
    show(changed, output, rows(("document", "field", "is", "would be"), told) if told else "no differences")
    if changed:
        raise typer.Exit(Exit.FAILED)


def patch(
    names: Annotated[list[str], typer.Argument(help="KIND KEY, e.g. gpu-type l4.")],
    wish: Annotated[str, typer.Option("--patch", "-p", help='What changes, as JSON or YAML: {"priority": 70}.')],
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Change some fields of a document: null goes back to the default, lists are replaced whole."""
    marked = read_marked(wish, "--patch")
    said = marked[0].plain if len(marked) == 1 else None
    if not isinstance(said, dict):
        raise InputError('--patch takes an object, such as {"priority": 70}')
    if unsaid := unsayable(marked[0]):
        raise UnreadableError(unsaid)
    kind, key = kind_and_key(names)
    with connect(server, token) as client, told_near(client, kind, key):
        before = client.get(kind.name, *key)
        after = client.patch(kind.name, key, labels_merged(said, before.body), if_match=before.etag)
    outcome = DocumentOutcome.UNCHANGED if after.etag == before.etag else DocumentOutcome.UPDATED
    warn(after.warnings)
    show(_as_file(kind, after.body), output, f"{outcome.value:<10} {kind.name}/{'/'.join(key)}")


def delete(
    names: Annotated[list[str] | None, typer.Argument(help="KIND KEY, e.g. service vision/resnet50.")] = None,
    files: Files = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Delete documents by file or by kind and key. What is already gone is no error with -f."""
    if bool(names) == bool(files):
        raise InputError("name either documents (headroom delete service vision/resnet50) or files with -f, not both")
    with connect(server, token) as client:
        if files:
            _each(client, list(reversed(_read(files))), delete_document, output)
        elif names and names[0].partition("/")[0] in ("profile", PROFILES):
            path = _path(_WRITTEN["profile"], [part for name in names for part in name.split("/")][1:])
            client.call("DELETE", path)
            typer.echo(f"{DocumentOutcome.DELETED} profile/{path.removeprefix('/v1/profiles/')}")
        else:
            kind, parts = kind_and_key(names or ())
            with told_near(client, kind, parts):
                client.delete(kind.name, *parts)
            typer.echo(f"{DocumentOutcome.DELETED} {kind.name}/{'/'.join(parts)}")


def _read(files: list[str] | None, *, checked: bool = False) -> list[Declared]:
    if not files:
        raise InputError("name at least one file with -f")
    documents = read_documents(files, checked=checked)
    if not documents:
        raise InputError(f"no documents in {', '.join(files)}")
    return documents


def _read_or_judged(files: list[str] | None, server: str | None, token: str | None) -> list[Declared]:
    """Where some cannot be read the others are judged, but for names, which may be those of what cannot be read."""
    try:
        return _read(files, checked=True)
    except UnreadableError as error:
        judged = [document for document in error.found if document.kind != PROFILES]
        with suppress(CommandError, HeadroomError, ClientError), connect(server, token) as client:
            _refuse(judged, checked(client, judged) or [], but="reference-unknown")
        raise


def _each(client: Client, documents: Sequence[Declared], act: Any, output: Format) -> None:
    """Do one thing to every document, go on after a failure, and say what became of each, however it ends."""
    results = [{"document": document.label, "outcome": "not sent"} for document in documents]
    failures: list[Exit] = []
    try:
        for document, line in zip(documents, results, strict=True):
            failures += _failed(client, document, act, line)
    finally:
        _show_lines(results, output)
    if failures:
        raise CommandError(f"{len(failures)} of {len(results)} documents failed", failures[0])


def _failed(client: Client, document: Declared, act: Any, line: dict[str, str]) -> list[Exit]:
    """Do it. How it failed, which is told; what depends on what failed will say so itself."""
    line["outcome"] = "unknown"
    try:
        line["outcome"] = act(client, document).value
    except (HeadroomError, ClientError) as error:
        code = exit_code_of(error)
        line["outcome"] = "unknown" if code is Exit.UNREACHABLE else "failed"
        if code in (Exit.UNREACHABLE, Exit.REFUSED):
            raise
        for told in _placed(document, error):
            typer.echo(f"headroom: {told}", err=True)
        return [code]
    return []


def _show_lines(results: Sequence[Mapping[str, str]], output: Format) -> None:
    lines = "\n".join(f"{line['outcome']:<10} {line['document']}" for line in results)
    show(results, output, lines if output.is_for_people else listed(("outcome", "document"), results))


def _placed(document: Declared, error: HeadroomError | ClientError) -> list[str]:
    """What is wrong with a document, fault by fault where the API names fields of it."""
    pointers = error.pointers if isinstance(error, ApiError) else ()
    if any(pointer.startswith("/") for pointer, _ in pointers):
        code = getattr(error, "code", "")
        return [f"{document.complaint(pointer, detail)} ({code})" for pointer, detail in pointers]
    return [document.complaint("", f"{document.label}: {sentence_of(error)}")]


def edit(
    names: Annotated[list[str], typer.Argument(help="KIND KEY, e.g. service vision/resnet50.")],
    server: Server = None,
    token: Token = None,
) -> None:
    """Open a document in $VISUAL or $EDITOR and put what was made of it, unless somebody changed it meanwhile. What is
    refused stays in a file, which is named.
    """
    kind, key = kind_and_key(names)
    with connect(server, token) as client:
        with told_near(client, kind, key):
            found = client.get(kind.name, *key)
        text = yaml_text({"kind": kind.name, **found.body})
        file = _edited(text)
        if file.read_text(encoding="utf-8") == text:
            file.unlink()
            typer.echo(f"unchanged  {kind.name}/{'/'.join(key)}")
            return
        try:
            _put(client, kind, key, file, found.etag)
        except (HeadroomError, ClientError) as error:
            told = "" if isinstance(error, ApiError | UnreadableError) else f"{error.message}; "
            done = "what was changed is not known" if isinstance(error, UnreachableError) else "nothing was changed"
            raise CommandError(f"{told}{done}; your text is in {file}", exit_code_of(error)) from None
    file.unlink()
    typer.echo(f"updated    {kind.name}/{'/'.join(key)}")


def _put(client: Client, kind: Kind, key: tuple[str, ...], file: Path, tag: str | None) -> None:
    """Put what the file says, if that is still this document. Raises HeadroomError after every fault was told."""
    try:
        documents = read_documents([str(file)])
    except UnreadableError as error:
        for line in error.lines:
            typer.echo(f"headroom: {line}", err=True)
        raise
    if len(documents) != 1 or (documents[0].kind, documents[0].key) != (kind.name, key):
        raise InputError(f"{file}: this is not {kind.name}/{'/'.join(key)} any more")
    try:
        _warn(documents[0], client.put(kind.name, documents[0].fields, if_match=tag).warnings)
    except ApiError as error:
        for line in _placed(documents[0], error):
            typer.echo(f"headroom: {line}", err=True)
        raise


def _edited(text: str) -> Path:
    """A file of the text after the editor has closed. Raises CommandError when there is no editor, or it failed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    descriptor, name = tempfile.mkstemp(prefix="headroom-", suffix=".yaml")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    try:
        status = subprocess.call([*shlex.split(editor), name])
    except (OSError, ValueError) as error:
        Path(name).unlink()
        raise CommandError(f"no editor {editor!r} ({error}): set EDITOR", Exit.USAGE) from None
    if status != 0:
        raise CommandError(f"{editor} ended with status {status}; your text is in {name}")
    return Path(name)
