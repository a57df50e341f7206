"""Everything that shows a run: rankings, files, pictures, pages. It sees runs, never models."""
