"""What methods do to a model, worked out from calibration a few layers at a time.

Layers are in portions, so that the Hessians of one portion take no more than `HESSIAN_BYTES`. The
calibration text goes through the model once, and waits between two portions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from farthing.forge.calibrate import Calibrator, input_sources
from farthing.forge.folding import Folding
from farthing.forge.methods import NEEDS_TEXT, SPLIT_FORMATS, Method
from farthing.forge.scales import NOT_SCALED, divided, rotate, scalable_groups, smooth, weigh
from farthing.forge.treatment import Treatment
from farthing.quant.formats import format_named
from farthing.quant.outlier_columns import outlier_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.forge.calibrate import Calibration
    from farthing.forge.input_sums import InputStatistics
    from farthing.forge.scales import Scaled
    from farthing.models.load import Model
    from farthing.plan.stages import Source

HESSIAN_BYTES = 128 << 20

_LAYER = re.compile(r"layers\.(\d+)\.")


def changed_form(model: Model, methods: Sequence[Method]) -> tuple[Model, Folding]:
    """The model with what changes its weights whatever the text; and that folding."""
    folding = rotate(model) if Method.ROTATE in methods else Folding()
    return folding.apply(model), folding


class Preparation:
    """Works out what becomes of each weight, one portion of them at a time.

    `model` and `folding` are as `changed_form` gives them. `formats` are the formats that matrices
    will have, by Program name. `progress` is told the share of a calibration that is done.
    """

    def __init__(
        self,
        model: Model,
        folding: Folding,
        formats: Mapping[str, str],
        methods: Sequence[Method],
        calibration: Calibration | None,
        progress: Callable[[float], None],
    ) -> None:
        self._model, self._folding, self._methods = model, folding, frozenset(methods)
        self._formats, self._progress = formats, progress
        self._calibrator = None if calibration is None else Calibrator(model, calibration.windows)
        every = input_sources(model.program)
        linears = [op.weights[0] for op in model.program.ops if op.kind == "linear"]
        self._sources: dict[str, Source] = {name: every[name] for name in linears}
        self._coded = [name for name in linears if format_named(formats[name]).scaled]
        wants_scales = self._methods & {Method.SMOOTHQUANT, Method.AWQ}
        # Scales are for codes: what is kept beside them stays as it is. Where there are none at
        # all, floats are smoothed for whoever rounds them later.
        everywhere = not self._coded and Method.SMOOTHQUANT in self._methods
        self._groups = [
            group
            for group in (scalable_groups(model.program) if wants_scales else ())
            if everywhere or any(name in self._coded for name in group.weights)
        ]
        self._measured = {*self._coded, *(name for each in self._groups for name in each.weights)}
        self.portions = self._in_portions()
        self._first: Mapping[str, InputStatistics] = {}

    @property
    def uses_text(self) -> bool:
        """Whether calibration decides anything about any matrix."""
        if self._methods & NEEDS_TEXT:
            return bool(self._measured)
        return any(format_named(self._formats[name]).weighed for name in self._coded)

    @property
    def edited(self) -> frozenset[str]:
        """The weights whose numbers change before they are rounded."""
        names = set(self._folding.edits)
        for group in self._groups:
            assert group.origin is not None
            names.update(group.weights, group.origin.weights)
        return frozenset(names)

    @property
    def static_inputs(self) -> frozenset[str]:
        """The matrices whose input has one fixed scale."""
        return frozenset(self._coded if Method.STATIC_INPUTS in self._methods else ())

    def columns(self) -> dict[str, NDArray[np.int32]]:
        """The outlier columns of the matrices that have any."""
        if Method.LLM_INT8 not in self._methods:
            return {}
        if not self._first:
            self._first = self._collect(self._measured, self.portions[0])
        return self._columns(self._first)

    def treatment(self, number: int) -> Treatment:
        """What becomes of the weights of portion `number`."""
        if self._calibrator is None:
            return Treatment(self._folding)
        portion = self.portions[number]
        statistics = self._first if number == 0 else {}
        if not statistics:
            statistics = self._collect(self._measured & portion, portion)
        self._first = {}
        statistics = {name: found for name, found in statistics.items() if name in portion}
        scaled = self._scaled(portion, statistics)
        statistics = {
            name: divided(found, scaled.divisors[name]) if name in scaled.divisors else found
            for name, found in statistics.items()
        }
        coded = [name for name in self._coded if name in portion]
        columns = self._columns(statistics)
        return Treatment(
            self._folding.then(scaled.folding),
            columns=columns,
            input_scales=self._input_scales(coded, statistics, columns),
            hessians={
                name: hessian for name in coded if (hessian := statistics[name].hessian) is not None
            },
            clipped=frozenset(coded if Method.AWQ in self._methods else ()),
            compensated=frozenset(coded if Method.GPTQ in self._methods else ()),
            importance={name: statistics[name].square for name in coded},
        )

    def _scaled(self, portion: frozenset[str], found: Mapping[str, InputStatistics]) -> Scaled:
        groups = [group for group in self._groups if group.weights[0] in portion]
        if Method.SMOOTHQUANT in self._methods:
            return smooth(self._model, groups, found)
        if Method.AWQ in self._methods:
            return weigh(self._model, groups, found, self._formats)
        return NOT_SCALED

    def _columns(self, found: Mapping[str, InputStatistics]) -> dict[str, NDArray[np.int32]]:
        if Method.LLM_INT8 not in self._methods:
            return {}
        whole = [name for name in found if self._formats[name] in SPLIT_FORMATS]
        columns = {name: outlier_columns(found[name].largest) for name in whole}
        return {name: each for name, each in columns.items() if each.size}

    def _input_scales(
        self,
        coded: Sequence[str],
        statistics: Mapping[str, InputStatistics],
        columns: Mapping[str, NDArray[np.int32]],
    ) -> dict[str, np.float32]:
        """The largest magnitude that is not multiplied apart becomes 127."""
        scales: dict[str, np.float32] = {}
        if Method.STATIC_INPUTS not in self._methods:
            return scales
        for name in coded:
            largest = statistics[name].largest
            if name in columns:
                largest = np.delete(largest, columns[name])
            most = largest.max(initial=0)
            # An input that was always zero may have any scale.
            scales[name] = np.float32(most / 127 if most > 0 else 1)
        return scales

    def _collect(self, names: set[str], portion: frozenset[str]) -> dict[str, InputStatistics]:
        """By matrix; with the Hessians of the portion where a method needs them."""
        assert self._calibrator is not None
        wanted = {self._sources[name] for name in names}
        needs = self._methods & {Method.GPTQ, Method.AWQ}
        hessians = {self._sources[name] for name in names & portion} if needs else set()
        found = self._calibrator.collect(wanted, hessians, self._progress)
        return {name: found[self._sources[name]] for name in names}

    def _in_portions(self) -> list[frozenset[str]]:
        """All weights: consecutive layers together, and what is outside of layers at the end."""
        layers: dict[int, set[str]] = {}
        outside: set[str] = set()
        for name in self._model.program.weights:
            found = _LAYER.match(name)
            (outside if found is None else layers.setdefault(int(found[1]), set())).add(name)
        if not self._methods & {Method.GPTQ, Method.AWQ}:
            return [frozenset(self._model.program.weights)]
        portions: list[set[str]] = []
        room = 0
        for layer in sorted(layers):
            size = self._hessian_bytes(layers[layer])
            if size > room or not portions:
                portions.append(set())
                room = HESSIAN_BYTES
            portions[-1] |= layers[layer]
            room -= size
        portions[-1] |= outside
        return [frozenset(portion) for portion in portions]

    def _hessian_bytes(self, names: set[str]) -> int:
        sources = {self._sources[name] for name in names & self._measured}
        return sum(4 * self._model.program.values[each.value].width ** 2 for each in sources)
