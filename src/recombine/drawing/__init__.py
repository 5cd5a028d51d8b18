"""Everything that draws: palette, shapes, canvas."""
