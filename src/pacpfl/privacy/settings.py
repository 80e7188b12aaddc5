"""How much privacy is asked for: the section [privacy] of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pacpfl.settings import Settings, key


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Differential privacy of PAC-PFL's training (docs/privacy.md); the other methods have none."""

    mode: str = key(
        "none",
        "none, gaussian, laplace (pure epsilon), or paper (as printed: NO GUARANTEE)",
        choices=("none", "paper", "laplace", "gaussian"),
    )
    epsilon: float | None = key(None, "budget of the whole training", above=0)
    delta: float = key(1e-5, "with it (gaussian)", above=0, most=0.5)
    clip: float = key(1.0, "gamma: norm to which updates are clipped", above=0)
    clip_quantile: float | None = key(
        None, "let the clip adapt, so that this share of updates is not clipped", above=0, most=0.99
    )
    clip_rate: float = key(0.2, "how fast it adapts", above=0)
    per_particle: bool = key(False, "clip each particle's part to an equal share")
    sampling: str = key(
        "poisson",
        "how clients_per_round are drawn: poisson (that many expected), fixed (exactly), all",
        choices=("poisson", "fixed", "all"),
    )
    unit: str = key(
        "client",
        "what is protected: a client, or one sample of it",
        choices=("client", "sample"),
    )
    average: float = key(
        0.0, "share of the rounds, the last ones, whose particles are averaged", least=0, most=1
    )
    strict: bool = key(False, "leave everything out of the run folder that is not accounted for")
    noise_seed: int | None = key(
        None, "repeatable noise, for tests; the run is NOT PRIVATE then", least=0
    )

    def problems(self) -> Iterator[str]:
        if self.mode == "none":
            if self.epsilon is not None:
                yield (
                    f"privacy.epsilon = {self.epsilon} protects nobody without a mode; set "
                    "privacy.mode to gaussian or laplace."
                )
        elif self.epsilon is None:
            yield f"privacy.mode = {self.mode} needs a budget; set privacy.epsilon."
        elif self.clip_quantile is not None and (self.mode, self.unit) != ("gaussian", "client"):
            yield (
                "privacy.clip_quantile is accounted for mode gaussian and unit client only; leave it "
                "out."
            )
