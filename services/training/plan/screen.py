"""Draw a plan in the terminal: processes, memory, arithmetic, and the files that the run reads."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contracts.secrets.redaction import redact
from services.data.tasks.base import ColumnRead
from services.models.adapters import model_in_words
from services.terminal.screens import Screen
from services.training.plan.first_prompt import PromptAsRead
from services.training.plan.memory import Amount
from services.training.plan.plan import Plan
from services.training.plan.processes import Processes
from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.capacity.memory_model import GIB

MIB = 2**20
WIDTH = 120  # columns when the output is a file or a pipe
SHOWN = 2000  # characters of a prompt
EXAMPLE = 50  # characters of a column's value


def show(plan: Plan) -> None:
    console = Screen(highlight=False)
    console = console if console.is_terminal else Screen(highlight=False, width=WIDTH)
    console.print(drawn(plan))


def drawn(plan: Plan) -> RenderableType:
    """Return the whole plan, the most important sections first."""
    parts: list[RenderableType] = [_heading(plan)]
    parts += [Text(f"! {redact(warning)}", style="yellow") for warning in plan.warnings]
    parts += [
        _section("What goes where", _processes(plan)),
        _section("Memory, about", _memory(plan)),
        _section("What it comes to", _pairs(plan.words)),
        _section("What is read", _pairs(plan.sources)),
        *(_columns(part, columns) for part, columns in plan.columns.items() if columns),
        *_prompts(plan),
    ]
    return Group(*parts, Text("\nNothing was started. whetstone train with the same words starts it."))


def _prompts(plan: Plan) -> list[RenderableType]:
    """Return the first prompts as the model reads them; [] if an environment writes them."""
    return [_prompt(part, read) for part, read in plan.prompts_as_read.items()]


def _prompt(part: str, read: PromptAsRead) -> RenderableType:
    count = len(read.tokens)
    what = f"The first prompt of {part}" if part else "The first prompt"
    title = f"{what} as the model reads it, {count:,} token{'s' * (count != 1)}"
    prompt = _section(title, Text(redact(_shortened(read.text))))
    responses = {name: _shortened(text) for name, text in read.responses}
    return Group(prompt, _section("Its responses", _pairs(responses))) if responses else prompt


def _shortened(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN:,} characters …]\n{text[-SHOWN // 2 :]}"


def _columns(part: str, columns: Sequence[ColumnRead]) -> RenderableType:
    """Return a table of a data set's columns with their meanings and first values."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("column", "is read as", "its first value"):
        table.add_column(title, overflow="fold")
    for column in columns:
        read_as = column.read_as or "not read" + (f": {column.hint}" if column.hint else "")
        value = repr(column.example)
        value = value if len(value) <= EXAMPLE else f"{value[: EXAMPLE - 1]}…"
        style = "" if column.read_as else "dim"
        table.add_row(Text(column.name), Text(read_as), Text(redact(value)), style=style)
    return _section(f"The columns of the data of {part}" if part else "The columns of the data", table)


def _heading(plan: Plan) -> Text:
    settings, machine = plan.settings, plan.deployment.machine
    heading = Text(settings.run_name, style="bold")
    size = "" if plan.num_parameters is None else f", {_count(plan.num_parameters)} parameters"
    if plan.is_estimated and size:
        size += " by its config.json"
    what = f"{settings.algorithm_name} on {settings.task_name}, {model_in_words(settings.model)}{size}"
    heading.append(f"   {what}", style="not bold")
    if machine.cluster:
        where = f"the Ray cluster at {machine.cluster}; its resources are read when the run starts"
    else:
        gpus = f"{machine.num_gpus:g} GPU{'s' * (machine.num_gpus != 1)}" if machine.num_gpus else "no GPU"
        where = f"this machine: {machine.num_cores:g} cores, {gpus}"
    heading.append(f"\non {where}", style="not bold dim")
    state = "a new run" if not plan.done else f"goes on after iteration {plan.done}"
    heading.append(f"\nin {plan.folder.path}: {state}", style="not bold dim")
    return heading


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False))


def _processes(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in (("process", "left"), ("how many", "right"), ("CPUs", "right"), ("GPUs", "right")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("", overflow="fold")
    for row in plan.processes:
        table.add_row(row.part, row.count, _amount(row.num_cpus), _gpus(row), Text(row.what, style="dim"))
    return table


def _gpus(row: Processes) -> str:
    return "a share" if row.num_gpus is None else _amount(row.num_gpus)


def _amount(number: float) -> str:
    """Return the number, or a dash for 0, so that reservations stand out."""
    return f"{number:.3g}" if number else "–"


def _memory(plan: Plan) -> RenderableType:
    if not plan.memory:
        return Text("not known: the weights are still on the hub, and config.json does not give their number")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    before = None
    for amount in plan.memory:
        where = amount.where if amount.where != before else ""
        table.add_row(where, amount.what, _size(amount), amount.note)
        before = amount.where
    workers = plan.settings.rollout.num_workers
    total = f"learner and {workers} worker{'s' * (workers > 1)}, without environments and graders"
    if any(amount.num_bytes is None for amount in plan.memory):
        total += ", and without parts that have no number here"
    if plan.deployment.workers_sleep:
        total += "; workers awake, or the learner's update, whichever is more"
    if not (plan.deployment.machine.cluster or plan.deployment.machine.num_gpus):
        total += f"; available: {available_bytes() / GIB:.1f} GiB"
    table.add_row("in all", "", _bytes(plan.total_bytes), total, style="bold")
    return table


def _size(amount: Amount) -> str:
    return "–" if amount.num_bytes is None else _bytes(amount.num_bytes)


def _bytes(number: float) -> str:
    """
    >>> _bytes(1.5 * GIB), _bytes(20 * MIB), _bytes(300_000)
    ('1.5 GiB', '20 MiB', '0.3 MiB')
    """
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number / MIB:.0f} MiB" if number >= MIB else f"{number / MIB:.1f} MiB"


def _count(number: int) -> str:
    """
    >>> _count(124_439_808), _count(111_232), _count(999)
    ('124 million', '111 thousand', '999')
    """
    for least, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= least:
            return f"{number / least:.3g} {word}"
    return str(number)


def _pairs(texts: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, what in texts.items():
        table.add_row(name, Text(redact(what)))  # Text, because rich would read brackets in a path as markup
    return table
