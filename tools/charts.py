"""Make `lexfed/report/assets/vega.js`, the script that draws the charts of reports: Vega, Vega-Lite
and Vega-Embed in one file, as `vl-convert-python` carries them. Nothing is downloaded.

    python tools/charts.py            write it
    python tools/charts.py --check    say whether it is what the package makes
"""

import sys
from pathlib import Path

import vl_convert

ASSET = Path(__file__).parents[1] / "lexfed/report/assets/vega.js"
VEGA_LITE = "6.4"


def bundle() -> str:
    return str(vl_convert.javascript_bundle(vl_version=VEGA_LITE))


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if ASSET.read_text(encoding="utf-8") == bundle() else f"{ASSET} differs")
    ASSET.write_text(bundle(), encoding="utf-8")
