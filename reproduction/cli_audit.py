"""`python -m reproduction audit`: attack the privacy mechanism, and say what epsilon it has at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pacpfl.errors import InputError

if TYPE_CHECKING:
    from reproduction.audit import Audited

MODES = ("gaussian", "laplace", "paper")
SAMPLING = ("all", "poisson", "fixed")


def audit(
    mode: Annotated[str, typer.Argument(help=f"Which mechanism: {', '.join(MODES)}.")] = "gaussian",
    epsilon: Annotated[float, typer.Option(help="The budget it is made for.")] = 8.0,
    delta: Annotated[float, typer.Option(help="With it (gaussian).")] = 1e-5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are released.")] = 1,
    rate: Annotated[float, typer.Option(help="Share of the clients in a round.")] = 1.0,
    sampling: Annotated[
        str, typer.Option(help="all, poisson, or fixed (one client is replaced by another).")
    ] = "all",
    dimension: Annotated[int, typer.Option(min=1, help="Numbers in one update.")] = 100,
    trials: Annotated[int, typer.Option(min=20, help="With the canary, and without.")] = 100_000,
    training: Annotated[
        bool,
        typer.Option("--training", help="Attack whole trainings of PAC-PFL (500 by default)."),
    ] = False,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="Many canaries in one run instead of many runs.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Of the attack.")] = 0,
) -> None:
    """Attack the mechanism with the best test there is, and bound its epsilon from below.

    A canary client is there or not; the attacker knows everything else. Exits with 1 when the bound
    refutes an epsilon that is guaranteed.
    """
    for name, value, known in (("mode", mode, MODES), ("sampling", sampling, SAMPLING)):
        if value not in known:
            raise InputError(f"There is no {name} {value!r}; there are {', '.join(known)}.")
    if not 0 < rate <= 1 or not 0 < confidence < 1:
        raise InputError("--rate and --confidence are shares; give numbers between 0 and 1.")
    if training and one_run:
        raise InputError("--one-run attacks the mechanism alone; leave out --training.")
    from pacpfl.engine import runtime

    runtime.configure()
    from pacpfl.privacy.accounting import plan_for
    from reproduction import audit as audits

    clients = 1000
    plan = plan_for(
        *(epsilon, delta, rounds),
        mode=mode,  # type: ignore[arg-type]
        sampling=sampling,  # type: ignore[arg-type]
        clients=clients,
        cohort=max(1, round(rate * clients)),
    )
    if training:
        from reproduction.audit_training import demonstrate

        runs = 500 if trials == 100_000 else trials
        found = demonstrate(plan, rounds, trials=runs, seed=seed, confidence=confidence)
    elif one_run:
        found = audits.audit_one_run(plan, rounds, seed=seed, confidence=confidence)
    else:
        found = audits.audit_mechanism(
            plan, rounds, dimension=dimension, trials=trials, seed=seed, confidence=confidence
        )
    print(in_words(found))
    if found.exposed and found.guaranteed:
        raise typer.Exit(1)


def in_words(found: Audited) -> str:
    bound = found.bound
    neighbours = {
        "add-remove": "one client more or less",
        "replace": "one client replaced by another",
    }[found.adjacency]
    claim = "accounted" if found.guaranteed else "stated (without a guarantee)"
    judged = f"{bound.trials} {'guesses' if bound.how == 'one run' else 'runs'}"
    verdict = "REFUTED" if found.exposed else "not refuted"
    return (
        f"epsilon is at least {bound.epsilon:.3f} at delta = {bound.delta:g} ({neighbours}; "
        f"{100 * bound.confidence:g}% confidence, {bound.how}, {judged} on each side: "
        f"false positives {bound.false_positives:.3g}, false negatives {bound.false_negatives:.3g}).\n"
        f"The epsilon {claim} is {found.claimed:.3f}: {verdict}."
    )
