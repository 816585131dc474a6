"""Where the browser tests find and leave things."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ARTEFACTS = ROOT / ".browser" / "artefacts"
AXE = ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
