"""What an operator may choose about transactions; the defaults are Streamline's, and Kafka's where it has one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Times in milliseconds. Raises ValueError, in a sentence, on values that contradict each other."""

    check_interval_ms: int = 10_000
    """How often open transactions and idle transactional ids are looked at."""
    fence_on_timeout: bool = True
    """A transaction that timed out bumps the producer's epoch, so that the old instance is fenced."""
    min_timeout_ms: int = 1_000
    max_timeout_ms: int = 900_000
    """A client's time-out is clamped to these two (docs/decisions/0005-transaction-timeouts.md)."""
    two_phase_commit: bool = False
    """Whether clients may ask for transactions without a time-out (KIP-939)."""
    transactional_id_expiration_ms: int = 604_800_000
    """A transactional id without a request for so long is forgotten, in memory and on disk."""
    group_separator: str = ""
    """What stands between group and member in a transactional id (transaction_groups.py); empty: there are none."""

    def __post_init__(self) -> None:
        if self.check_interval_ms <= 0:
            raise ValueError(f"check_interval_ms must be positive, not {self.check_interval_ms}")
        if not 0 < self.min_timeout_ms <= self.max_timeout_ms:
            raise ValueError(
                f"min_timeout_ms ({self.min_timeout_ms}) must be positive and not above "
                f"max_timeout_ms ({self.max_timeout_ms})"
            )
        if self.transactional_id_expiration_ms <= self.max_timeout_ms:
            raise ValueError(
                f"transactional_id_expiration_ms ({self.transactional_id_expiration_ms}) must be above "
                f"max_timeout_ms ({self.max_timeout_ms}): an id must outlive its transactions"
            )
