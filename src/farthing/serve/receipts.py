"""The receipt on the card of a model: shown when it is known to speak of the weights served."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.serve.log import tell

if TYPE_CHECKING:
    from farthing.serve.state import ServerState


def show_receipt(state: ServerState) -> None:
    """Checks the receipt of the model that is served, and puts it on its card; tells why not.

    Does nothing for a model without one. Reads all weights, so it is done when the server answers.
    """
    engine, card = state.engine, state.card
    if engine is None or card is None or engine.report is None or not engine.report.has_receipt:
        return
    import msgspec

    from farthing.engine.receipts import checked_receipt, measured_otherwise

    facts, word = None, "gone since"
    try:
        receipt = checked_receipt(engine.report)
    except FarthingError as error:
        word = f"refused: {error}"
        tell("receipt_refused", f"the receipt is {word}", level=logging.WARNING)
    else:
        if receipt is not None:
            facts, word = msgspec.to_builtins(receipt), "matches the weights"
            if otherwise := measured_otherwise(receipt, engine.report):
                word += f"; measured with {otherwise}"
            tell("receipt", f"receipt: {receipt.summary()}; {word}", receipt=facts)
    state.card = replace(card, description={**card.description, "receipt": word}, receipt=facts)
