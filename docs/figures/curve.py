"""Draws the training curves of ranktune and of Transformers + PEFT, as tests/run/pretrained_curve_test.py wrote them.

    curve.py CURVES.csv FIGURE.svg TITLE"""
import csv
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "curve", "svg.fonttype": "none", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402


def main(source, figure, title):
    with open(source, newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    steps = [row["step"] for row in rows]
    drawing, (curves, difference) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, height_ratios=[2, 1])
    curves.plot(steps, [row["reference_loss"] for row in rows], color="#e69f00", linewidth=3, label="Transformers + PEFT")
    curves.plot(steps, [row["loss"] for row in rows], color="#0072b2", linewidth=1, label="ranktune")
    curves.set(title=title, ylabel="loss of the step")
    curves.legend(frameon=False)
    relative = [abs(row["loss"] / row["reference_loss"] - 1) for row in rows]
    difference.semilogy(steps, relative, ".", color="#0072b2", markersize=3)
    difference.axhline(1e-4, color="black", linewidth=0.8, linestyle="--")
    difference.text(steps[0], 1.3e-4, "bound of the test", va="bottom")
    difference.set(xlabel="step", ylabel="relative difference", ylim=(1e-9, 2e-3), xlim=(0, steps[-1] + 1))
    for axes in (curves, difference):
        axes.spines[["top", "right"]].set_visible(False)
    drawing.tight_layout()
    drawing.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:4])
