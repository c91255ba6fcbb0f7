"""One module per table. ``table`` returns numbers as stored, ``readable`` the same as text for people.

``formats`` has every number format, ``markup`` writes a readable table as Markdown or LaTeX.
"""
