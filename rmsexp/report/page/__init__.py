"""The texts of a report: the HTML page, Markdown and LaTeX."""
