"""The choice of a machine as a table of cost and time, for training and for serving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardwise import units
from shardwise.estimate.calibration import PEAK
from shardwise.plan.machine_front import ChipPrice
from shardwise.plan.serving.choice import ServingChoice, ServingMachine
from shardwise.plan.training.choice import TrainingChoice
from shardwise.plan.training.run_machines import BeatenMachine, TrainingMachine
from shardwise.report.serving.plan import warnings
from shardwise.report.serving.reasons import rule_text
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table
from shardwise.report.words import duration, listed, mesh_text, percent

MAX_ROWS = 12
FEW_CHIPS = 8  # without a price, all of which are named
UNCONFIRMED = "~"  # before a cost
WASTE = "↓"  # after an MFU
# Why a chip has no machine for a run -> words.
UNABLE = {
    "dtype": "without the products of this dtype, or without this framework",
    "fit": "no size that was compared holds the run, within the time if one is given",
}


def training_blocks(
    choice: TrainingChoice, *, verbose: bool = False, saved: str = ""
) -> Iterator[Block]:
    """The cheapest and the fastest machine, the front between them, the others, and the prices.

    Args:
        verbose: show all machines, also those without a plan, and the chips without a price.
    """
    yield strong(" ".join(_answers(choice)))
    yield labelled([("run", _about_run(choice))])
    yield _training_table(choice, verbose=verbose)
    notes = [*_lost(choice)]
    if any(map(choice.is_wasteful, choice.front)):
        notes.append((WASTE, "MFU below half of the best here: chips wait more than they compute"))
    notes += _prices(choice.prices, choice.without_price, verbose=verbose)
    if choice.largest:
        largest = ", ".join(f"{name} {n:,}" for name, n in choice.largest.items())
        notes.append(("largest", f"{largest} chips: one slice, or nodes without network figures"))
    yield labelled(notes)
    n_beaten = sum(not row.searched for row in choice.beaten)
    yield quiet(
        f"{choice.n_searched + n_beaten} machines compared in sizes that double, {n_beaten} of "
        "them by peak rates alone; none here is both cheaper and faster than another"
    )
    if saved:
        yield quiet(f"saved {saved}: the plan of {choice.chosen.hardware}")
    yield quiet(f"type  {_command(choice)}")
    yield quiet("      -v for all machines  ·  --within 60d for a time  ·  --batch for more chips")


def _answers(choice: TrainingChoice) -> Iterator[str]:
    """The cheapest machine, that of confirmed prices, the fastest, and the fastest that is busy."""
    cheapest = choice.cheapest
    yield f"Cheapest: {_run(cheapest, choice)}."
    confirmed = choice.cheapest_confirmed
    if confirmed and confirmed is not cheapest and not choice.prices[cheapest.chip].confirmed:
        yield f"At confirmed prices: {_run(confirmed, choice)}."
    fastest = choice.fastest
    if fastest is cheapest:
        return
    text = f"Fastest: {_run(fastest, choice)}"
    if not choice.is_wasteful(fastest):
        yield f"{text}."
        return
    yield f"{text}, but at an MFU of {percent(fastest.mfu)};"
    busy = choice.fastest_busy
    yield f"of at least half the best MFU: {_run(busy, choice)}, {percent(busy.mfu)}."


def _training_table(choice: TrainingChoice, *, verbose: bool) -> Block:
    """Rows of the front; with `verbose` also of all other machines, with what rules them out."""
    headers = [">run", ">cost", ">chips", "!hardware", ">MFU", "!rates"]
    rows = []
    for row in choice.front if verbose else choice.front[:MAX_ROWS]:
        cells = _training_cells(row, choice)
        rows.append([*cells, mesh_text(row.mesh)] if verbose else cells)
    if not verbose:
        return table(headers, rows)
    for row in choice.others:
        rows.append([*_training_cells(row, choice), "dearer and slower"])
    for beaten in sorted(choice.beaten, key=lambda row: (row.chip, row.n_chips)):
        run = f"> {duration(beaten.least_run_s)}"
        usd = f"> {units.show_dollars(beaten.least_usd)}"
        why = _why_beaten(beaten, choice)
        rows.append([run, usd, f"{beaten.n_chips:,}", beaten.hardware, "", "", why])
    return table([*headers, "mesh, or why not"], rows)


def _why_beaten(beaten: BeatenMachine, choice: TrainingChoice) -> str:
    """What rules out a machine whose best plan is not known."""
    if choice.within_s is not None and beaten.least_run_s >= choice.within_s:
        return "beyond the time"
    if choice.budget_usd is not None and beaten.least_usd >= choice.budget_usd:
        return "beyond the budget"
    return "dearer and slower" if beaten.searched else "so at peak"


def _training_cells(row: TrainingMachine, choice: TrainingChoice) -> list[str]:
    mark = f" {WASTE}" if choice.is_wasteful(row) else ""
    return [
        duration(row.run_s),
        _usd(row, choice.prices),
        f"{row.n_chips:,}",
        row.hardware,
        f"{percent(row.mfu)}{mark}",
        _rates(row.rates, row.chip),
    ]


def _lost(choice: TrainingChoice) -> Iterator[tuple[str, str]]:
    """The chips without a row in the table, and why: their cheapest machines, or none at all."""
    if choice.others:
        text = "; ".join(_run(row, choice) for row in choice.others)
        beyond = " or beyond the budget" if choice.budget_usd is not None else ""
        yield "lost", f"{text}: dearer and slower than a row here{beyond}"
    for reason, words in UNABLE.items():
        names = [name for name, why in choice.unable.items() if why == reason]
        if names:
            yield "unable", f"{', '.join(names)}: {words}"


def _usd(row: TrainingMachine, prices: Mapping[str, ChipPrice]) -> str:
    return f"{_mark(row, prices)}{units.show_dollars(row.usd)}"


def _mark(row: TrainingMachine | ServingMachine, prices: Mapping[str, ChipPrice]) -> str:
    """The mark of a cost that follows from a price which is not confirmed; empty for others."""
    return "" if prices[row.chip].confirmed else UNCONFIRMED


def serving_blocks(
    choice: ServingChoice, *, verbose: bool = False, saved: str = ""
) -> Iterator[Block]:
    """The cheapest deployment and that of the shortest TPOT, those of all chips, and the prices.

    Args:
        verbose: show all chips, also those without a plan, with the reason, or without a price.
    """
    cheapest = choice.machines[0]
    front = [row for row in choice.machines if row.hardware in choice.front]
    fastest = min(front, key=lambda row: row.tpot_s)
    text = f"Cheapest: {_deployment(cheapest, choice)}."
    confirmed = [row for row in choice.machines if choice.prices[row.chip].confirmed]
    if confirmed and confirmed[0] is not cheapest and not choice.prices[cheapest.chip].confirmed:
        text += f" At confirmed prices: {_deployment(confirmed[0], choice)}."
    if fastest not in (cheapest, *confirmed[:1]):
        text += f" Shortest TPOT of these: {_deployment(fastest, choice)}."
    yield strong(text)
    yield labelled([*warnings(choice.chosen), *_rules(choice)])
    rows = [
        [
            f"{_mark(row, choice.prices)}${row.usd_per_hour:,.2f}",
            f"{row.usd_per_million_tokens:,.2f}",
            units.show_seconds(row.tpot_s),
            units.show_seconds(row.ttft_s),
            f"{row.n_chips:,}",
            row.hardware,
            row.rates,
            "front" if row.hardware in choice.front else "",
        ]
        for row in (choice.machines if verbose else choice.machines[:MAX_ROWS])
    ]
    figure = "p50" if cheapest.simulated else "mean"
    times = [f">TPOT {figure}", f">TTFT {figure}"]
    headers = [">an hour", ">$/M out", *times, ">chips", "!hardware", "!rates from", "!"]
    yield table(headers, rows)
    cost = "an hour" if choice.rate or choice.users else "for a token"
    yield labelled([("front", f"no other row both costs less {cost} and has a shorter TPOT")])
    yield labelled(_prices(choice.prices, choice.without_price, verbose=verbose))
    notes = []
    if choice.unable and verbose:
        yield labelled(
            label_first("no plan", [f"{name}: {why}" for name, why in choice.unable.items()])
        )
    elif choice.unable:
        notes.append(f"no plan on {', '.join(choice.unable)} (-v says why)")
    if len(choice.machines) > MAX_ROWS and not verbose:
        notes.append(f"{MAX_ROWS} of {len(choice.machines)} chips shown: -v for all")
    yield from map(quiet, notes)
    if saved:
        yield quiet(f"saved {saved}: the plan of {choice.chosen.hardware.name}")
    yield quiet(f"type  the same with {choice.chosen.hardware.chip} for its reasons")


def _rules(choice: ServingChoice) -> Iterator[tuple[str, str]]:
    """The rule that each chip's row was chosen by, and which chips have another one."""
    chips_of: dict[str, list[str]] = {}
    for row in choice.machines:
        chips_of.setdefault(rule_text(choice.rules[row.chip]), []).append(row.chip)
    for n, (text, chips) in enumerate(chips_of.items()):
        names = "each chip" if len(chips_of) == 1 else listed(chips)
        hint = ""
        rule = choice.rules[chips[0]]
        if rule.aim == "cheapest" or "tpot" in rule.usual:
            hint = ". Faster ones: --tpot"
        yield "rule" if n == 0 else "", f"of {names}: {text}{hint}"


def _command(choice: TrainingChoice) -> str:
    """The command that plans the same steps on the chosen machine."""
    words = [
        f"shardwise plan {choice.model} {choice.chosen.hardware} --train",
        f"--batch {choice.batch}x{choice.seq}",
    ]
    if choice.compute != "bf16":
        words.append(f"--dtype {choice.compute}")
    if choice.framework:
        words.append(f"--framework {choice.framework}")
    if choice.mtp_layers:
        words.append(f"--mtp {choice.mtp_layers}")
    return " ".join(words)


def _run(row: TrainingMachine, choice: TrainingChoice) -> str:
    return f"{row.hardware}, {duration(row.run_s)}, {_usd(row, choice.prices)}"


def _deployment(row: ServingMachine, choice: ServingChoice) -> str:
    return (
        f"{row.n_chips:,} chips of {row.chip} ({row.hardware}), TPOT "
        f"{units.show_seconds(row.tpot_s)}, {_mark(row, choice.prices)}"
        f"${row.usd_per_hour:,.2f} an hour, "
        f"${row.usd_per_million_tokens:,.2f} per million output tokens"
    )


def _about_run(choice: TrainingChoice) -> str:
    text = (
        f"{units.show_count(choice.tokens)} tokens in steps of {choice.batch:,} sequences x "
        f"{choice.seq:,}"
    )
    if choice.within_s is not None:
        text += f", within {duration(choice.within_s)}"
    if choice.budget_usd is not None:
        text += f", for at most {units.show_dollars(choice.budget_usd)}"
    return text


def _rates(rates: str, chip: str) -> str:
    """Whose runs the rates come from: of another chip, they are borrowed; or peak rates."""
    return rates if rates in (chip, PEAK.name) else f"of {rates}"


def _prices(
    prices: Mapping[str, ChipPrice], without_price: Sequence[str], *, verbose: bool
) -> Iterator[tuple[str, str]]:
    """The prices, those that are not confirmed with a mark, and the chips without any."""
    each = [
        f"{name} {'' if price.confirmed else UNCONFIRMED}${price.usd_per_hour:,.2f} "
        f"({price.as_of or 'yours'})"
        for name, price in prices.items()
    ]
    text = ", ".join(each) + " per chip-hour"
    if not all(price.confirmed for price in prices.values()):
        text += f"; {UNCONFIRMED} not confirmed by a first source"
    yield "prices", f"{text}; yours: b200,price=5USD/h"
    if without_price:
        names = f"{len(without_price)} chips (-v names them)"
        if verbose or len(without_price) <= FEW_CHIPS:
            names = ", ".join(without_price)
        yield "none", f"no public price, not compared: {names}"
