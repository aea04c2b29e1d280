"""The commands."""

from typing import Any

import click

import batchlab
from batchlab._build import build_kind
from batchlab.cli.bench import bench
from batchlab.cli.calibrate import calibrate
from batchlab.cli.capacity import capacity
from batchlab.cli.compare import compare
from batchlab.cli.conform import conform
from batchlab.cli.cost import catalog, cost
from batchlab.cli.engines import engines
from batchlab.cli.experiment import experiment
from batchlab.cli.explain import explain
from batchlab.cli.export import export
from batchlab.cli.learn import learn
from batchlab.cli.notes import note_interrupted
from batchlab.cli.published import published
from batchlab.cli.report import report
from batchlab.cli.run import run
from batchlab.cli.serve import serve
from batchlab.cli.show import show
from batchlab.cli.sweep import sweep
from batchlab.cli.tune import tune
from batchlab.cli.validate import validate
from batchlab.cli.verify import verify
from batchlab.cli.workload import workload


class Commands(click.Group):
    """All commands. One that a signal ends says so in one line; what it has half written is gone by then."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ended by signal N, exit with 128 + N, which no answer is."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            ctx.exit(note_interrupted(interrupt))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=f"{batchlab.__version__} ({build_kind()} core)", message="batchlab %(version)s")
def cli() -> None:
    """How LLM serving engines decide, iteration by iteration, which requests run."""


cli.add_command(run)
cli.add_command(show)
cli.add_command(compare)
cli.add_command(verify)
cli.add_command(explain)
cli.add_command(learn)
cli.add_command(export)
cli.add_command(report)
cli.add_command(conform)
cli.add_command(engines)
cli.add_command(cost)
cli.add_command(catalog)
cli.add_command(validate)
cli.add_command(calibrate)
cli.add_command(published)
cli.add_command(workload)
cli.add_command(sweep)
cli.add_command(capacity)
cli.add_command(tune)
cli.add_command(experiment)
cli.add_command(serve)
cli.add_command(bench)
