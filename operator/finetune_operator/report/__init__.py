"""The report of one run: its records as one data structure, and that as a page. Pure: no I/O and no clock."""

from finetune_operator.report.build import report_of
from finetune_operator.report.model import Report
from finetune_operator.report.records import AttemptRecords, ExportedFile, ExportManifest, ReportRecords

__all__ = ["AttemptRecords", "ExportManifest", "ExportedFile", "Report", "ReportRecords", "report_of"]
