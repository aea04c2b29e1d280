"""Which combinations to try next, from what the others gave: Optuna's multi-objective TPE over lists of values."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from batchlab.errors import InputError

Settings = dict[str, Any]
PATIENCE = 20
"""Proposals for each new combination; then one is drawn at random of those that have not been tried."""


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        message = "tune needs Optuna: pip install 'batchlab[plan]', or in a checkout .venv/bin/pip install -e '.[plan]'"
        raise InputError(None, None, None, message) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Proposer:
    """Proposes each combination once. The same seed and the same answers give the same proposals.

    most: for each axis, whether more is better. Values of numbers that rise are taken as an ordered range, all others
    as names.
    """

    def __init__(self, space: Mapping[str, Sequence[Any]], most: Sequence[bool], seed: int) -> None:
        optuna = _optuna()
        self._space = space
        self._rest = random.Random(seed)
        self._failed = optuna.trial.TrialState.FAIL
        self._create = optuna.trial.create_trial
        self._distributions = {
            key: optuna.distributions.IntDistribution(0, len(values) - 1)
            if _rises(values)
            else optuna.distributions.CategoricalDistribution(range(len(values)))
            for key, values in space.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of multivariate and constant_liar
            sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)
        directions = ["maximize" if one else "minimize" for one in most]
        self._study = optuna.create_study(directions=directions, sampler=sampler)
        self._asked: dict[tuple[int, ...], Any] = {}
        """Places of the values -> the study's trial, None for one that it did not propose."""

    @staticmethod
    def version() -> str:
        """Of what decides the proposals."""
        return f"optuna {_optuna().__version__}"

    def ask(self, count: int) -> list[Settings]:
        """So many new combinations. There have to be that many that are untried."""
        return [self._settings(self._next()) for _ in range(count)]

    def tell(self, combinations: Sequence[Settings], values: Sequence[Sequence[float] | None]) -> None:
        """What combinations gave, one value an axis; None where one cannot run."""
        for settings, found in zip(combinations, values, strict=True):
            places = self._places(settings)
            if places is None:
                continue
            trial = self._asked.setdefault(places, None)
            if trial is not None:
                self._study.tell(trial, found, state=self._failed if found is None else None)
            elif found is not None:
                params = dict(zip(self._space, places, strict=True))
                self._study.add_trial(self._create(params=params, distributions=self._distributions, values=found))

    def _next(self) -> tuple[int, ...]:
        for _ in range(PATIENCE):
            trial = self._study.ask(self._distributions)
            places = tuple(trial.params[key] for key in self._space)
            if places not in self._asked:
                self._asked[places] = trial
                return places
            self._study.tell(trial, state=self._failed)
        while (places := tuple(self._rest.randrange(len(values)) for values in self._space.values())) in self._asked:
            pass
        self._asked[places] = None
        return places

    def _settings(self, places: tuple[int, ...]) -> Settings:
        return {key: values[place] for (key, values), place in zip(self._space.items(), places, strict=True)}

    def _places(self, settings: Settings) -> tuple[int, ...] | None:
        """None where the space does not have the combination."""
        if any(settings[key] not in values for key, values in self._space.items()):
            return None
        return tuple(list(values).index(settings[key]) for key, values in self._space.items())


def _rises(values: Sequence[Any]) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and list(values) == sorted(values)
