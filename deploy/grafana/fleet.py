"""The dashboard of a fleet, from the operator's metrics: jobs, capacity, use of time and money, and the operator."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption

from deploy.grafana.panels import HALF, THIRD, choice, curves, frame, number

#: Jobs of the chosen namespaces and profiles.
_JOBS = '$team_label=~"$team", profile=~"$profile"'
#: Pods of the chosen releases of the operator.
_PODS = 'namespace=~"$release"'
#: In a legend: the namespace of the jobs. A series has one of the two labels.
_TEAM = "{{exported_namespace}}{{namespace}}"


def fleet() -> dashboard.Dashboard:
    labels = VariableOption(selected=True, text="exported_namespace", value="exported_namespace")
    made = (
        frame("Fine-tuning: fleet", "finetune-fleet", "All jobs of finetune-tpu, and the operator itself.")
        .with_variable(
            dashboard.CustomVariable("team_label")
            .label("Label of jobs' namespaces")
            .description("exported_namespace if Prometheus scrapes by a ServiceMonitor or PodMonitoring")
            .values("exported_namespace,namespace")
            .current(labels)
        )
        .with_variable(choice("team", "Namespace", "label_values(finetune_jobs, $team_label)", several=True))
        .with_variable(choice("profile", "Profile", "label_values(finetune_jobs, profile)", several=True))
        .with_variable(
            choice(
                "release", "Operator's namespace", "label_values(finetune_leader, namespace)", several=True
            )
        )
    )
    for part in (_now, _jobs, _time, _usage, _service_levels, _operator):
        made = part(made)
    return made


def _now(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Now"))
        .with_panel(
            number("Unfinished jobs", "short", f"sum(max by (namespace) (finetune_jobs_live{{{_PODS}}}))")
        )
        .with_panel(number("Chips at work", "short", f"sum(finetune_chips_held{{{_JOBS}}}) or vector(0)"))
        .with_panel(
            number(
                "Stalled", "short", f"sum(finetune_jobs_stalled{{{_JOBS}}})", "Valid jobs that cannot proceed"
            )
        )
        .with_panel(
            number(
                "Invalid",
                "short",
                f"sum(finetune_jobs_invalid{{{_JOBS}}})",
                "Jobs that wait for their author",
            )
        )
        .with_panel(
            number(
                "Blind",
                "short",
                f"sum(finetune_jobs_blind{{{_JOBS}}})",
                "Jobs whose run folder is unreadable",
            )
        )
        .with_panel(
            number("Operators that lead", "short", f"sum(finetune_leader{{{_PODS}}})", "1 for each release")
        )
    )


def _jobs(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Jobs"))
        .with_panel(
            curves(
                "Unfinished jobs by phase",
                "short",
                {
                    "{{phase}}": "sum by (phase) (finetune_jobs"
                    f'{{phase!~"Succeeded|Failed|Planned", {_JOBS}}})'
                },
                stacked=True,
            )
        )
        .with_panel(
            curves(
                "Why jobs wait",
                "short",
                {"{{reason}}": f'sum by (reason) (finetune_jobs{{reason!="", {_JOBS}}})'},
                stacked=True,
            )
        )
        .with_panel(
            curves(
                "Chips at work",
                "short",
                {_TEAM + " {{capacity}}": f"sum by ($team_label, capacity) (finetune_chips_held{{{_JOBS}}})"},
                stacked=True,
            )
        )
        .with_panel(
            curves(
                "Jobs that ended in the last hour",
                "short",
                {
                    "{{result}} {{class}}": "sum by (result, class) "
                    f"(increase(finetune_jobs_ended_total{{{_JOBS}}}[1h]))"
                },
            )
        )
        .with_panel(
            curves(
                "Attempts that failed in the last hour",
                "short",
                {
                    "{{class}}": f"sum by (class) (increase(finetune_attempts_ended_total{{{_JOBS}}}[1h]))",
                    "hung": f"sum(increase(finetune_attempts_hung_total{{{_JOBS}}}[1h]))",
                },
            )
        )
        .with_panel(
            curves(
                "Duration of stages, median of a day",
                "s",
                {
                    "{{stage}}": "histogram_quantile(0.5, sum by (le, stage) "
                    '(rate(finetune_stage_seconds_bucket{profile=~"$profile"}[1d])))'
                },
            )
        )
    )


def _time(made: dashboard.Dashboard) -> dashboard.Dashboard:
    def median(metric: str) -> str:
        selected = f'{metric}_bucket{{profile=~"$profile"}}'
        return f"histogram_quantile(0.5, sum by (le, capacity) (rate({selected}[7d])))"

    seconds = f"increase(finetune_training_seconds_total{{{_JOBS}}}[7d])"
    productive = f'increase(finetune_training_seconds_total{{use="productive", {_JOBS}}}[7d])'
    return (
        made.with_row(dashboard.Row("Use of time by trainings that ended in seven days"))
        .with_panel(
            curves(
                "Goodput",
                "percentunit",
                {_TEAM: f"sum by ($team_label) ({productive}) / sum by ($team_label) ({seconds})"},
                width=THIRD,
                description="Productive share of all seconds of training, waiting included",
            )
        )
        .with_panel(
            curves("Time by use", "s", {"{{use}}": f"sum by (use) ({seconds})"}, width=THIRD, stacked=True)
        )
        .with_panel(
            curves(
                "Waits and compilation, medians",
                "s",
                {
                    "quota, {{capacity}}": median("finetune_training_queue_seconds"),
                    "nodes and images, {{capacity}}": median("finetune_training_provisioning_seconds"),
                    "compilation, {{capacity}}": median("finetune_training_compilation_seconds"),
                },
                width=THIRD,
            )
        )
    )


def _usage(made: dashboard.Dashboard) -> dashboard.Dashboard:
    month, limit = (
        f"max by ($team_label, profile) ({name}{{{_JOBS}}})"
        for name in ("finetune_month_chip_hours", "finetune_month_chip_hours_limit")
    )
    return (
        made.with_row(dashboard.Row("Usage"))
        .with_panel(curves("Chip hours of the month", "h", {_TEAM + " {{profile}}": month}))
        .with_panel(
            curves(
                "Share of the monthly limit",
                "percentunit",
                {_TEAM + " {{profile}}": f"{month} / {limit}"},
            )
        )
        .with_panel(
            curves(
                "Cost of the month",
                "short",
                {
                    _TEAM + " {{currency}}": "sum by ($team_label, currency) "
                    f"(max by ($team_label, profile, currency) (finetune_month_cost{{{_JOBS}}}))"
                },
            )
        )
        .with_panel(
            curves(
                "Chip hours per hour",
                "short",
                {
                    _TEAM + " {{capacity}}": "sum by ($team_label, capacity) "
                    f"(rate(finetune_chip_seconds_total{{{_JOBS}}}[$__rate_interval]))"
                },
                width=HALF,
                stacked=True,
                description="Chips in which processes ran, as statuses report them",
            )
        )
        .with_panel(
            curves(
                "Cost of an hour",
                "short",
                {
                    _TEAM + " {{currency}}": "sum by ($team_label, currency) "
                    f"(rate(finetune_cost_total{{{_JOBS}}}[$__rate_interval])) * 3600"
                },
                width=HALF,
                stacked=True,
            )
        )
    )


def _service_levels(made: dashboard.Dashboard) -> dashboard.Dashboard:
    def share(metric: str, seconds: str) -> str:
        met = f'increase({metric}_bucket{{le="{seconds}", {_PODS}}}[$__range])'
        return f"sum({met}) / sum(increase({metric}_count{{{_PODS}}}[$__range]))"

    return (
        made.with_row(dashboard.Row("Service levels over the chosen time"))
        .with_panel(
            number(
                "Admitted within 30 s",
                "percentunit",
                share("finetune_admission_seconds", "30.0"),
                "Target: 99 %",
            )
        )
        .with_panel(
            number(
                "Next stage within 5 s",
                "percentunit",
                share("finetune_stage_handover_seconds", "5.0"),
                "Target: 99 %",
            )
        )
        .with_panel(
            number(
                "Status within 5 s",
                "percentunit",
                share("finetune_status_delay_seconds", "5.0"),
                "Target: 99 %",
            )
        )
        .with_panel(
            number(
                "An operator leads",
                "percentunit",
                f"avg_over_time((min(max by (namespace) (finetune_leader{{{_PODS}}})) or vector(0))[$__range:1m])",
                "Target: 99.9 %",
            )
        )
    )


def _operator(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Operator"))
        .with_panel(
            curves(
                "Queue",
                "short",
                {
                    "due": f"max(finetune_queue_depth{{{_PODS}}})",
                    "longest wait, s": f"max(finetune_queue_oldest_seconds{{{_PODS}}})",
                },
            )
        )
        .with_panel(
            curves(
                "Age of watches",
                "s",
                {"{{watch}}": f"max by (watch) (finetune_watch_age_seconds{{{_PODS}}})"},
            )
        )
        .with_panel(
            curves(
                "Reconciles",
                "ops",
                {
                    "{{result}}": "sum by (result) "
                    f"(rate(finetune_reconcile_seconds_count{{{_PODS}}}[$__rate_interval]))"
                },
            )
        )
        .with_panel(
            curves(
                "Errors by reason",
                "ops",
                {
                    "{{reason}}": "sum by (reason) "
                    f"(rate(finetune_reconcile_errors_total{{{_PODS}}}[$__rate_interval]))"
                },
            )
        )
        .with_panel(
            curves(
                "Requests to the API server",
                "reqps",
                {
                    "{{verb}} {{code}}": "sum by (verb, code) "
                    f"(rate(finetune_api_requests_total{{{_PODS}}}[$__rate_interval]))"
                },
            )
        )
        .with_panel(
            curves(
                "Requests to stores",
                "reqps",
                {
                    "{{operation}}": "sum by (operation) "
                    f"(rate(finetune_storage_requests_total{{{_PODS}}}[$__rate_interval]))",
                    "{{operation}}, refused": "sum by (operation) "
                    f"(rate(finetune_storage_refused_total{{{_PODS}}}[$__rate_interval]))",
                },
            )
        )
        .with_panel(
            curves(
                "Records that wait",
                "short",
                {
                    "ledger, jobs": f"max(finetune_ledger_pending{{{_PODS}}})",
                    "ledger, namespaces that cannot be read": f"max(finetune_ledger_unread{{{_PODS}}})",
                },
                width=HALF,
            )
        )
        .with_panel(
            curves(
                "Slowest requests to the API server",
                "s",
                {
                    "{{verb}}, 99 %": "histogram_quantile(0.99, sum by (le, verb) "
                    f"(rate(finetune_api_request_seconds_bucket{{{_PODS}}}[$__rate_interval])))"
                },
                width=HALF,
            )
        )
    )
