"""A policy objective: one choice for each of several independent parts."""

import dataclasses

from algorithms import (
    aggregates,
    anchors,
    baselines,
    corrections,
    entropies,
    gates,
    keeps,
    penalties,
    ratios,
    scales,
    shapes,
    transforms,
)
from algorithms.parts import Part, check_ranges, choice, setting


@dataclasses.dataclass(frozen=True)
class Method:
    """A policy objective, put together from parts.

    In the order they act: shape, baseline, scale, transform and keep make advantages
    of rewards; anchor, ratio, gate and correction weigh tokens; aggregate turns the
    sum into a mean; kl and entropy are terms of their own.

    Raises:
      ValueError: a setting is out of range, or two parts contradict each other.
    """

    name: str = setting("grpo", "the named method that parts are taken from")
    shape: shapes.Shape = choice(
        shapes.SHAPES, shapes.NoShape(), "what is added to the task's reward"
    )
    baseline: baselines.Baseline = choice(
        baselines.BASELINES, baselines.Mean(), "what a reward is compared with"
    )
    scale: scales.Scale = choice(
        scales.SCALES, scales.Std(), "what a centred reward is divided by"
    )
    transform: transforms.Transform = choice(
        transforms.TRANSFORMS, transforms.NoTransform(), "what advantages become then"
    )
    keep: keeps.Keep = choice(
        keeps.KEEPS, keeps.Everything(), "rollouts that the update may see"
    )
    anchor: anchors.Anchor = choice(
        anchors.ANCHORS, anchors.Sampler(), "policy under the ratio"
    )
    ratio: ratios.Ratio = choice(
        ratios.RATIOS, ratios.Token(), "what a token's score is weighed by"
    )
    gate: gates.Gate = choice(
        gates.GATES, gates.Clip(), "trust region: what is left of a token's coefficient"
    )
    correction: corrections.Correction = choice(
        corrections.CORRECTIONS,
        corrections.NoCorrection(),
        "weight for a sampler that is not the anchor",
    )
    aggregate: aggregates.Aggregate = choice(
        aggregates.AGGREGATES, aggregates.SequenceMean(), "how much each token counts"
    )
    kl: penalties.Penalty = choice(
        penalties.PENALTIES, penalties.NoPenalty(), "pull towards another policy"
    )
    entropy: entropies.Entropy = choice(
        entropies.ENTROPIES, entropies.NoEntropy(), "bonus for open choices"
    )
    max_advantage: float = setting(0.0, "advantages are cut to +-this; 0 is off")
    refills: int = setting(
        0, "further sampling phases a batch may take until all its groups say something"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        self._check_parts()
        self._check_ratio()
        self._check_scale()

    def _check_parts(self) -> None:
        for f in dataclasses.fields(self):
            value, options = getattr(self, f.name), f.metadata.get("options")
            if options is not None and not isinstance(value, Part):
                raise ValueError(
                    f"objective.{f.name}={value!r} is no part; the parts are"
                    f" {', '.join(options)}"
                )

    def _check_ratio(self) -> None:
        if isinstance(self.ratio, ratios.NoRatio) and self.gate.reads_ratio:
            raise ValueError(
                f"objective.gate={self.gate.name} never acts where"
                f" objective.ratio={self.ratio.name} is 1 everywhere; use"
                " objective.gate=none or another ratio"
            )
        if not self.ratio.whole_response:
            return
        for slot, part in (("gate", self.gate), ("correction", self.correction)):
            if part.varies:
                raise ValueError(
                    f"objective.{slot}={part.name} varies inside a response, but"
                    f" objective.ratio={self.ratio.name} weighs a response as a whole;"
                    " use objective.ratio=sequence_token, or a"
                    f" {slot} that treats a response's tokens alike"
                )

    def _check_scale(self) -> None:
        if getattr(self.baseline, "across", False) and getattr(
            self.scale, "within", False
        ):
            raise ValueError(
                f"objective.scale={self.scale.name} is a deviation within a group, 0"
                " where its rewards are equal, but objective.baseline="
                f"{self.baseline.name} gives such a group advantages all the same; use"
                " objective.scale=none or batch_std"
            )

    @property
    def drops_median(self) -> bool:
        """Whether the rollout that is dropped is to be the median, and so to exist."""
        return isinstance(self.baseline, baselines.Median) and self.keep.extra > 0

    @property
    def by_slot(self) -> bool:
        """Whether the slots of a group are treated unlike each other."""
        return self.shape.by_slot or self.transform.by_slot
