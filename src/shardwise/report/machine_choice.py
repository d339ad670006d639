"""The choice of a machine as a table of cost and time, for training and for serving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardwise import units
from shardwise.estimate.calibration import PEAK
from shardwise.plan.machine_front import ChipPrice
from shardwise.plan.serving.choice import ServingChoice, ServingMachine
from shardwise.plan.training.choice import TrainingChoice, TrainingMachine
from shardwise.report.serving.plan import warnings
from shardwise.report.serving.reasons import rule_text
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import duration, listed, mesh_text, percent

MAX_ROWS = 12


def training_blocks(choice: TrainingChoice, *, saved: str = "") -> Iterator[Block]:
    """The cheapest and the fastest machine, the front between them, and the prices."""
    cheapest = choice.cheapest
    text = f"Cheapest: {_run(cheapest)}."
    if choice.fastest is not cheapest:
        text += f" Fastest: {_run(choice.fastest)}."
    yield strong(text)
    yield labelled([("run", _about_run(choice))])
    rows = [
        [
            duration(row.run_s),
            units.show_dollars(row.usd),
            f"{row.n_chips:,}",
            row.hardware,
            percent(row.mfu),
            _rates(row.rates, row.chip),
            mesh_text(row.mesh),
        ]
        for row in choice.front[:MAX_ROWS]
    ]
    yield table([">run", ">cost", ">chips", "!hardware", ">MFU", "!rates", "mesh"], rows)
    notes = [*_prices(choice.prices, choice.without_price)]
    if choice.largest:
        largest = ", ".join(f"{name} {n:,}" for name, n in choice.largest.items())
        notes.append(("largest", f"{largest} chips: one slice, or nodes without network figures"))
    yield labelled(notes)
    yield quiet(
        f"{choice.n_searched} machines searched, in sizes that double; no machine here is both "
        "cheaper and faster than another. Larger batches keep more chips busy: --batch"
    )
    if saved:
        yield quiet(f"saved {saved}: the plan of {choice.chosen.hardware}")
    yield quiet(f"type  {_command(choice)}")


def serving_blocks(choice: ServingChoice, *, saved: str = "") -> Iterator[Block]:
    """The cheapest deployment and that of the shortest TPOT, those of all chips, and the prices."""
    cheapest = choice.machines[0]
    front = [row for row in choice.machines if row.hardware in choice.front]
    fastest = min(front, key=lambda row: row.tpot_s)
    text = f"Cheapest: {_deployment(cheapest)}."
    if fastest is not cheapest:
        text += f" Shortest TPOT of these: {_deployment(fastest)}."
    yield strong(text)
    yield labelled([*warnings(choice.chosen), *_rules(choice)])
    rows = [
        [
            f"${row.usd_per_hour:,.2f}",
            f"{row.usd_per_million_tokens:,.2f}",
            units.show_seconds(row.tpot_s),
            units.show_seconds(row.ttft_s),
            f"{row.n_chips:,}",
            row.hardware,
            row.rates,
            "front" if row.hardware in choice.front else "",
        ]
        for row in choice.machines[:MAX_ROWS]
    ]
    figure = "p50" if cheapest.simulated else "mean"
    times = [f">TPOT {figure}", f">TTFT {figure}"]
    headers = [">an hour", ">$/M out", *times, ">chips", "!hardware", "!rates from", "!"]
    yield table(headers, rows)
    cost = "an hour" if choice.rate or choice.users else "for a token"
    yield labelled([("front", f"no other row both costs less {cost} and has a shorter TPOT")])
    yield labelled(_prices(choice.prices, choice.without_price))
    notes = []
    if choice.unable:
        notes.append(f"no plan on {', '.join(choice.unable)} (--json says why)")
    if len(choice.machines) > MAX_ROWS:
        notes.append(f"{MAX_ROWS} of {len(choice.machines)} chips shown")
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


def _run(row: TrainingMachine) -> str:
    return f"{row.hardware}, {duration(row.run_s)}, {units.show_dollars(row.usd)}"


def _deployment(row: ServingMachine) -> str:
    return (
        f"{row.n_chips:,} chips of {row.chip} ({row.hardware}), TPOT "
        f"{units.show_seconds(row.tpot_s)}, ${row.usd_per_hour:,.2f} an hour, "
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
    prices: Mapping[str, ChipPrice], without_price: Sequence[str]
) -> Iterator[tuple[str, str]]:
    each = [
        f"{name} ${price.usd_per_hour:,.2f} ({price.as_of or 'yours'}"
        f"{'' if price.confirmed else ', not confirmed'})"
        for name, price in prices.items()
    ]
    yield "prices", ", ".join(each) + " per chip-hour; yours: b200,price=5USD/h"
    if without_price:
        yield "none", f"no public price, not compared: {', '.join(without_price)}"
