"""All kinds of trouble that are looked out for, in the order in which they are told."""

from __future__ import annotations

from batchlab.explain.blocking import AdmissionBlocking, BudgetBlocking, PriorityInversion, Starvation
from batchlab.explain.churn import DecodeStall, Livelock, PrefillOwned, RecomputeTax, Thrash
from batchlab.explain.finding import Trouble
from batchlab.explain.load import IdleSeats, OfferedRate, Overload, PriorityWithoutEffect, RetryStorm

TROUBLES: tuple[type[Trouble], ...] = (
    Livelock,
    Overload,
    OfferedRate,
    RetryStorm,
    Starvation,
    PriorityInversion,
    BudgetBlocking,
    AdmissionBlocking,
    IdleSeats,
    Thrash,
    RecomputeTax,
    DecodeStall,
    PrefillOwned,
    PriorityWithoutEffect,
)
