"""All attacks on all targets, in the order of the page."""

from __future__ import annotations

from tests.attack.areas.calls import CALLS
from tests.attack.areas.files import FILES
from tests.attack.areas.ipc import IPC
from tests.attack.areas.network import NETWORK
from tests.attack.areas.privilege import PRIVILEGE
from tests.attack.areas.processes import PROCESSES
from tests.attack.areas.resets import RESETS, SLOW_RESETS
from tests.attack.areas.resources import RESOURCES
from tests.attack.areas.storms import STORMS
from tests.attack.areas.swelling import SWELLING
from tests.attack.model import Attack, Row

ATTACKS: tuple[Attack, ...] = (
    *(*FILES, *RESETS, *CALLS, *PROCESSES, *STORMS, *IPC, *NETWORK, *PRIVILEGE),
    *(*RESOURCES, *SLOW_RESETS, *SWELLING),
)
ROWS: tuple[Row, ...] = tuple(Row(attack, against) for attack in ATTACKS for against in attack.against)
