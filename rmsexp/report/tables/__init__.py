"""The tables, one module each: ``table`` returns numbers, ``readable`` the table's cells as text.

Each module about a setting yields its tables, in the form of ``form``, from ``tables``. ``findings`` returns sentences
instead. ``formats`` has the number formats that tables share, and ``markup`` writes a table of text as Markdown or
LaTeX.
"""
