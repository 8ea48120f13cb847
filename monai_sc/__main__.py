"""The command line, ``python -m monai_sc COMMAND``."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence

from monai_sc.commands.ablate import add_ablate
from monai_sc.commands.audit import add_audit
from monai_sc.commands.compare import add_compare
from monai_sc.commands.correct import add_correct
from monai_sc.commands.prepare import add_prepare
from monai_sc.commands.report import add_report
from monai_sc.commands.simulate import add_simulate
from monai_sc.commands.stand_in import add_stand_in

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
COMMANDS = (add_ablate, add_audit, add_compare, add_correct, add_prepare, add_report, add_simulate, add_stand_in)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status. What a user did wrong is one sentence, not a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m monai_sc", description="Annotation error in masks: find it, correct it, simulate it."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in COMMANDS:
        command = add(commands)
        command.add_argument("--debug", action="store_true", help="show where in the code an error came from")
    # MONAI 1.6 warns in every LoadImage that it has no GPU decoder of DICOM files, where pydicom is installed.
    logging.getLogger("monai.data.nvimgcodec_pydicom_plugin").setLevel(logging.ERROR)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print(f"Stopped; {arguments.when_stopped}.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        text = str(error)
        print(f"Error: {text if text.endswith('.') else f'{type(error).__name__}: {text}.'}", file=sys.stderr)
        return REFUSED if isinstance(error, (ValueError, FileNotFoundError)) else FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main())
