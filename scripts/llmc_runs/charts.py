"""The charts of a report: one for each scalar, the runs' curves over each other. What moves in them is in page.js."""

from bokeh.embed import components
from bokeh.events import DoubleTap, MouseLeave, MouseMove, Tap
from bokeh.models import (BoxZoomTool, ColumnDataSource, CrosshairTool, CustomJS, CustomJSTickFormatter,
                          PanTool, Range1d, ResetTool, SaveTool, Span, WheelZoomTool)
from bokeh.plotting import figure

from llmc_runs.bar_chart import COLORS

# What is known of a scalar; every other one is shown under its own name, after these.
TITLES = {
    "loss": ("Training loss", "nats a token"),
    "z_loss": ("z-loss", "nats a token"),
    "val_loss": ("Held-out loss", "nats a token"),
    "val_bits_per_byte": ("Held-out loss", "bits a byte of text"),
    "choices_acc": ("Right answers", "acc: the likeliest ending, of all questions"),
    "choices_acc_norm": ("Right answers", "acc_norm: the likeliest by character"),
    "choices_acc_norm_tokens": ("Right answers", "acc_norm_tokens: the likeliest by token"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "lr": ("Learning rate", ""),
    "tokens_per_s": ("Throughput", "tokens a second"),
    "mfu": ("Model FLOPs utilization", "of bf16's peak, causal"),
    "step_ms": ("Time of a step", "ms"),
    "computing_ms_min": ("Computing, without waiting", "ms a step, the fastest rank"),
    "computing_ms_median": ("Computing, without waiting", "ms a step, the median rank"),
    "computing_ms_max": ("Computing, without waiting", "ms a step, the slowest rank"),
    "gpu_mhz": ("Clock of the GPU", "MHz, of the slowest rank"),
    "gpu_watts": ("Power of the GPU", "W, of the slowest rank"),
    "gpu_celsius": ("Temperature of the GPU", "°C, of the slowest rank"),
    "gpu_ecc": ("Memory errors", "not corrected, of the slowest rank"),
    "fp8_overflows": ("FP8 overflows", "tensors with numbers beyond their scale"),
    "fp8_underflows": ("FP8 underflows", "tensors whose numbers all became 0"),
}
EXACT = ("lr",)  # no noise: never smoothed
FRACTIONS = ("choices_acc", "choices_acc_norm", "choices_acc_norm_tokens", "mfu")
LOGARITHMIC = ("loss", "val_loss", "grad_norm")  # if the reader wants so; also those of sources


def names_of(all_curves):
    """The scalars of all runs: those with a title first, and after each those of the sources of a mixture."""
    found = dict.fromkeys(name for curves in all_curves for name in curves)
    return ([name for known in TITLES for name in found if base_of(name) == known]
            + [name for name in found if base_of(name) not in TITLES])


def base_of(name):
    """loss of "loss/web", which is the loss of the source web."""
    return name.partition("/")[0]


def title_of(name):
    """The title of a scalar's chart, and its unit."""
    title, unit = TITLES.get(base_of(name), (name, ""))
    source = name.partition("/")[2]
    return (f"{title} of {source}" if source and base_of(name) in TITLES else title), unit


def draw(all_curves):
    """The script that draws, and for each scalar the place of its chart: (script, {name: HTML})."""
    names = names_of(all_curves)
    if not names:  # a first sample, say
        return "", {}
    shared = {"x_range": Range1d(0, 1), "crosshair": Span(dimension="height", line_dash="dotted")}
    return components({name: chart(name, all_curves, **shared) for name in names})


def chart(name, all_curves, x_range, crosshair):
    """A figure with a curve a run, called run:<number>; `smooth` is the column that page.js computes."""
    plot = figure(name=name, height=260, sizing_mode="stretch_width", x_range=x_range, tools="", window_axis="x",
                  toolbar_location="above", toolbar_inner=True, min_border_left=46, min_border_right=12)
    if base_of(name) in FRACTIONS:
        plot.y_range.default_span = 0.1  # of the axis of a constant; else it would be 2
    for number, curves in enumerate(all_curves):
        if name in curves:
            dense = is_dense(curves[name], curves)
            add_curve(plot, number, curves[name], smooth=dense and name not in EXACT, points=not dense)
    zoom = BoxZoomTool(dimensions="width")
    plot.add_tools(zoom, PanTool(dimensions="width"), WheelZoomTool(dimensions="width"), ResetTool(), SaveTool(),
                   CrosshairTool(overlay=crosshair))
    plot.toolbar.active_drag, plot.toolbar.autohide, plot.toolbar.logo = zoom, True, None
    plot.js_on_event(MouseMove, CustomJS(code="page.read_at(cb_obj.x)"))
    plot.js_on_event(Tap, CustomJS(code="page.read_at(cb_obj.x)"))
    plot.js_on_event(MouseLeave, CustomJS(code="page.read_at(null)"))
    plot.js_on_event(DoubleTap, CustomJS(code="cb_obj.origin.reset.emit()"))
    plot.xaxis.formatter = CustomJSTickFormatter(code="return page.x_text(tick)")
    plot.yaxis.formatter = CustomJSTickFormatter(code="return page.number_text(tick)")
    dress(plot)
    return plot


def is_dense(curve, curves):
    """Whether there is a value for most steps, and more than a handful: else each stands for itself."""
    return len(curve.step) > max(10, len(curves.get("loss", curve).step) / 2)


def add_curve(plot, number, curve, smooth, points):
    columns = curve.columns()
    source = ColumnDataSource({**columns, "x": columns["step"], "smooth": columns["value"]},
                              name="smooth" if smooth else "exact")
    color = COLORS[number % len(COLORS)]
    if smooth:
        plot.line("x", "value", source=source, color=color, alpha=0.28, line_width=1, name=f"raw:{number}")
    plot.line("x", "smooth", source=source, color=color, line_width=2, line_join="round", name=f"run:{number}")
    if points:
        plot.scatter("x", "value", source=source, color=color, size=5, name=f"points:{number}")


def dress(plot):
    """What is the same in light and dark."""
    plot.background_fill_alpha = plot.border_fill_alpha = 0
    plot.outline_line_color = None
    plot.grid.grid_line_width = 1
    plot.xgrid.visible = False
    plot.axis.axis_line_color = plot.axis.minor_tick_line_color = plot.axis.major_tick_line_color = None
    plot.axis.major_label_text_font = "system-ui, sans-serif"
    plot.axis.major_label_text_font_size = "12px"
    plot.xaxis.ticker.desired_num_ticks, plot.yaxis.ticker.desired_num_ticks = 6, 5
