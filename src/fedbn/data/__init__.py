"""How data is read: pictures, tables, arrays and digit files, checked, prepared and cached."""

from __future__ import annotations
