"""The panel in JupyterLab: widgets over ``workbench.live``, and no logic of their own."""

from __future__ import annotations

from workbench.panel.workbench import SideBySide, Workbench

__all__ = ["SideBySide", "Workbench"]
