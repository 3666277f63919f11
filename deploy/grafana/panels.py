"""What both dashboards are made of: a frame with a choice of the Prometheus, and panels with queries."""

from collections.abc import Mapping
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models.common import StackingMode, VizOrientation
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${prometheus}")
#: Of 24 columns.
THIRD, HALF, WHOLE = 8, 12, 24
_STAT_WIDTH, _STAT_HEIGHT, _HEIGHT = 4, 4, 8


def frame(title: str, uid: str, description: str) -> dashboard.Dashboard:
    """A dashboard of the last day without panels."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["finetune-tpu"])
        .time("now-24h", "now")
        .refresh("1m")
        .readonly()
        .with_variable(dashboard.DatasourceVariable("prometheus").label("Prometheus").type("prometheus"))
    )


def choice(name: str, label: str, query: str, *, several: bool) -> dashboard.QueryVariable:
    """A variable whose values are those of a label, by a query such as ``label_values(up, job)``."""
    chosen = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if not several:
        return chosen
    every = VariableOption(selected=True, text="All", value="$__all")
    return chosen.multi(True).include_all(True).all_value(".*").current(every)


def number(title: str, unit: str, query: str, description: str = "") -> stat.Panel:
    """The newest value of each series of the query."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(_STAT_WIDTH)
        .height(_STAT_HEIGHT)
        .orientation(VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(prometheus.Dataquery().expr(query).instant().ref_id("A"))
    )


def curves(
    title: str,
    unit: str,
    queries: Mapping[str, str],
    *,
    width: int = THIRD,
    stacked: bool = False,
    description: str = "",
) -> timeseries.Panel:
    """Values over time. ``queries``: legend, which may name labels as ``{{label}}`` -> query."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .span(width)
        .height(_HEIGHT)
        .min(0)
    )
    if stacked:
        panel = panel.fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for letter, (legend, query) in zip(ascii_uppercase, queries.items(), strict=False):
        target = prometheus.Dataquery().expr(query).legend_format(legend).range().ref_id(letter)
        panel = panel.with_target(target)
    return panel


def states(title: str, query: str, legend: str, *, width: int = WHOLE) -> statetimeline.Panel:
    """One bar for each series of a query that has only values of 1 and 0."""
    return (
        statetimeline.Panel()
        .title(title)
        .datasource(PROMETHEUS)
        .span(width)
        .height(_HEIGHT)
        .with_target(prometheus.Dataquery().expr(query).legend_format(legend).range().ref_id("A"))
    )
