"""Models that are named, not given as a folder: can the Hugging Face hub be asked for them?

The hub's own client tries for the better part of a minute, several times, before it says no. Here it is asked once, for
a few seconds: without an answer a model that was downloaded before is taken from the cache, and any other is an error
that says so. Nothing is downloaded here.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from huggingface_hub import constants, get_session, try_to_load_from_cache

from podium.errors import ModelError

ANSWER_S = 5.0


def hub_options(name: str) -> dict[str, Any]:
    """Further arguments of a loader for a model that is not on this machine, or ModelError when it cannot be had."""
    if constants.HF_HUB_OFFLINE:
        trouble = "HF_HUB_OFFLINE is set, so the Hugging Face hub is not asked"
    elif fault := hub_fault(constants.ENDPOINT):
        trouble = f"the Hugging Face hub ({constants.ENDPOINT}) cannot be reached ({fault})"
    else:
        return {}
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return {"local_files_only": True}
    raise ModelError(
        f"The model {name!r} is not a local folder, {constants.HF_HUB_CACHE} has no copy of it, and {trouble}. Give "
        "the path of a local folder, or download the model where there is a network; HF_HUB_OFFLINE=1 then takes the "
        "copy without asking the hub"
    )


@functools.cache
def hub_fault(endpoint: str) -> str:
    """Why the hub does not answer; empty when it does. Asked once in a process."""
    said: list[str] = []

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=ANSWER_S)
            said.append("")
        except Exception as error:  # noqa: BLE001 (fault boundary: whatever keeps the hub from answering)
            said.append(str(error) or type(error).__name__)

    asking = threading.Thread(target=ask, name="hub-probe", daemon=True)  # a name server may take longer than any limit
    asking.start()
    asking.join(2 * ANSWER_S)
    return said[0] if said else f"no answer within {2 * ANSWER_S:g} s"
