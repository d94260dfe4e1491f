"""SVG files of Vega-Lite specifications, in an environment that has `vl-convert-python`. Nothing is
downloaded.

    python draw.py SPECIFICATIONS.json FOLDER
"""

import json
import sys
from pathlib import Path

import vl_convert

VEGA_LITE = "6.4"

if __name__ == "__main__":
    for name, spec in json.loads(Path(sys.argv[1]).read_text()).items():
        drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
        (Path(sys.argv[2]) / f"{name}.svg").write_text(drawn)
