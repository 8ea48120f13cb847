import pytest

from monai_sc.folders.words import (
    bias_sentence,
    class_notes,
    dice_words,
    done_words,
    existence_words,
    file_notes,
    folder_notes,
    headline,
    source_of,
)


def row(source="move", shift=-9.75, *, pairs=5, note="a shift by the bias gives the best Dice", **changes):
    """Return what a corrector reports of a class whose labels are moved by the bias of some cases with both labels."""
    of = "labels" if pairs else "network"
    held_out = {"of": of if pairs else "predictions", "cases": max(pairs, 0), "before": 0.77, "after": 0.957}
    return {
        "bias": -9.7,
        "interval": [-10.2, -9.1],
        "verdict": "biased",
        "cases_used": 5,
        "bias_of": of,
        "network": None,
        "learnt": True,
        "source": source,
        "move": {"representation": "distance" if shift else "none", "shift": shift, "note": note},
        "correction": {"representation": "none", "shift": 0.0, "note": ""},
        "held_out": {**held_out, "accepted": True, "note": "held-out labels are clearly better"},
        "existence": None,
        **changes,
    }


def judged(cases, note="", of="labels", after=0.957):
    return {"of": of, "cases": cases, "before": 0.77, "after": after, "accepted": bool(cases), "note": note}


NETWORK = {"representation": "distance", "shift": 2.0, "note": "a shift by the bias gives the best Dice"}
ASKED = {**NETWORK, "note": "as asked"}
STAYS = "no correction makes held-out labels clearly better"
DONE = [
    pytest.param(row(), "labels moved by -9.75 mm (rule: the bias of 5 cases with both labels)", id="moved"),
    pytest.param(
        row(note="this shift gives the best Dice on 5 clean cases"),
        "labels moved by -9.75 mm (rule: the shift with the best Dice on 5 cases with both labels)",
        id="moved-by-another-shift",
    ),
    pytest.param(
        row(pairs=0, note="by the offset of given labels to corrected predictions"),
        "labels moved by -9.75 mm (rule: by the offset of given labels to corrected predictions)",
        id="moved-without-pairs",
    ),
    pytest.param(
        row("blend"), "labels corrected by the network, blended with the drawn shape", id="network-with-the-shape"
    ),
    pytest.param(
        row("predict", correction=NETWORK),
        "labels corrected by the network, whose boundaries were moved by +2 mm (rule: a shift by the bias gives the "
        "best Dice), without the drawn shape",
        id="network-that-is-moved",
    ),
    pytest.param(
        row("predict", correction={**ASKED, "shift": 0.0}),
        "labels replaced by the network's, as asked, without the drawn shape",
        id="as-asked",
    ),
    pytest.param(row("keep", held_out=judged(5, STAYS)), f"labels stay: {STAYS}", id="stays"),
    pytest.param(
        row("move", shift=0.0, held_out=judged(5, STAYS)), f"labels stay: {STAYS}", id="moved-by-nothing-is-to-stay"
    ),
    pytest.param(
        row("keep", pairs=1, held_out=judged(0)),
        "labels stay: a single case has both labels, so no other case can judge a shift; have one more drawn again",
        id="one-pair",
    ),
    pytest.param(
        row("keep", pairs=0, learnt=False),
        "labels stay: the network has not learnt the class, and no case has both labels",
        id="not-learnt",
    ),
    pytest.param(row("keep", pairs=0, note="not clear"), "labels stay: not clear", id="no-pairs"),
]


@pytest.mark.parametrize(("own", "expected"), DONE)
def test_what_was_done_names_the_rule(own, expected):
    pairs = {"labels": 5, "network": 0}[own["bias_of"]]
    pairs = 1 if not own["held_out"]["cases"] and pairs else pairs
    assert done_words(own, "mm", pairs) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(
            row(),
            "on 5 held-out cases with both labels, each judged by the others: Dice .770 as given, .957 corrected",
            id="labels",
        ),
        pytest.param(
            row("keep"),
            "on 5 held-out cases with both labels, each judged by the others: Dice .770 as given",
            id="no-dice-after-of-labels-that-stay",
        ),
        pytest.param(
            row("blend", pairs=0, held_out=judged(4, of="predictions")),
            "on 4 held-out cases, each judged by the others: Dice of the predictions .770 uncorrected, .957 corrected; "
            "the gain of the labels is unknown, since no case has both labels",
            id="predictions",
        ),
        pytest.param(
            row(held_out=judged(0, "a single clean case carries it")),
            "based on a single case; no held-out case confirms it",
            id="a-single-case",
        ),
        pytest.param(row("blend", held_out=judged(0, "as asked")), "made as asked, not judged", id="as-asked"),
    ],
)
def test_dice_after_is_of_held_out_cases(own, expected):
    assert class_notes(own, "mm")[0] == expected


def test_bias_of_the_network_is_told_apart():
    network = {"bias": -16.61, "interval": [-20.0, -13.2], "verdict": "biased"}
    assert class_notes(row(network=network), "mm")[1] == (
        "the network's own bias, which is not that of the labels: -16.61 mm [-20.00, -13.20], biased"
    )
    assert len(class_notes(row(pairs=0, network=network, bias_of="network"), "mm")) == 1  # it is the one in the table
    one = {"bias": -16.61, "interval": [None, None], "verdict": "cannot tell"}
    assert class_notes(row(network=one), "mm")[1].endswith("-16.61 mm, cannot tell")


def report(to_check=(), *, representation="auto", redrawn=0, **rows):
    return {
        "classes": rows,
        "moved": {name: source_of(own) for name, own in rows.items()},
        "redrawn": redrawn,
        "to_check": [{"case": case, "class": "1", "reason": ""} for case in to_check],
        "settings": {"representation": representation},
    }


HEADLINES = [
    pytest.param(
        report(disc=row()),
        "The labels of 1 of 1 class are biased (disc too large). The labels were moved; the originals are untouched.",
        id="moved",
    ),
    pytest.param(
        report(["a", "b", "a"], lung=row(), heart=row("blend", verdict="unbiased"), bone=row("keep", verdict="x")),
        "The labels of 1 of 3 classes are biased (lung too large). The labels of lung were moved, those of heart were "
        "corrected by the network, those of bone stay as they were given; the originals are untouched. 2 cases to "
        "check, listed below.",
        id="each-class-as-it-was-done",
    ),
    pytest.param(
        report(disc=row("keep"), redrawn=2),
        "The labels of 1 of 1 class are biased (disc too large). All labels were left as they were given, but those of "
        "the 2 cases with a clean label, which have that.",
        id="labels-that-stay-are-not-corrected",
    ),
    pytest.param(
        report(disc=row(verdict="cannot tell", held_out=judged(0, "a single clean case carries it"))),
        "These clean cases do not show whether the labels are biased. The labels were moved; the originals are "
        "untouched. This is based on a single case; no held-out case confirms it.",
        id="a-single-case",
    ),
    pytest.param(
        report(a=row("predict", pairs=0), b=row("predict", pairs=0), representation="distance"),
        "No case has both labels; the network that learnt from them is biased in 2 of 2 classes (a too large, b too "
        "large). The labels of all classes were replaced by the network's, as asked; the originals are untouched.",
        id="as-asked-is-not-corrected",
    ),
]


@pytest.mark.parametrize(("found", "expected"), HEADLINES)
def test_headline(found, expected):
    assert headline(found, listed="below") == expected


@pytest.mark.parametrize("source", ["keep", "move", "blend", "predict"])
def test_only_what_was_changed_is_called_corrected(source):
    told = headline(report(disc=row(source)), listed="below")
    assert ("corrected" in told) == (source in ("blend", "predict"))


def test_unbiased_labels_and_networks_are_told_apart():
    found = [("1", "unbiased", 0.1)]
    assert bias_sentence(found).startswith("No class is biased: the labels are as large as the clean ones")
    assert bias_sentence(found, of="network").endswith("the network that learnt from them is biased in no class.")
    assert bias_sentence([("1", "biased", 2.0)]) == "The labels of 1 of 1 class are biased (class 1 too small)."


def test_existence_and_other_values_are_told():
    rule = {"feature": "mean_confidence", "threshold": 0.61234, "drops_given": False}
    words = "the false-positive filter dropped predicted objects with a mean confidence under 0.612"
    assert existence_words(1, {"rule": rule}) == [
        "1 object stays, since the shift would have left too little",
        f"{words}, unless they were drawn",
    ]
    assert existence_words(0, {"rule": {**rule, "drops_given": True}}) == [f"{words}, drawn ones too"]
    assert existence_words(0, None) == existence_words(0, {"rule": None}) == []
    result = {"unit": "mm", "unit_stated": True, "unused": [], "other_values": {}}
    assert folder_notes(result) == []
    assert folder_notes(result | {"unused": ["a.png"], "other_values": {"7": 3}}) == [
        "1 clean label without a label of the same name did not count for the bias: a.png.",
        "Value 7 is not a class and stays in 3 labels.",
    ]
    assert file_notes(result | {"unit_stated": False, "unused": list("abcdefg")}) == [
        "Some files state no unit of length; mm is assumed.",
        "7 clean labels without a label of the same name did not count for the bias: a, b, c, d, e and 2 more.",
    ]


@pytest.mark.parametrize(("value", "expected"), [(0.9567, ".957"), (1.0, "1.000"), (0.0, ".000")])
def test_dice_has_three_digits(value, expected):
    assert dice_words(value) == expected
