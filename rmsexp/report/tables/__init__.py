"""The tables, one module each: ``table`` returns numbers, ``readable`` the table's cells as text.

``registry`` has the tables of a setting in their order; each module yields its own, in the form of ``form``, from
``tables``. ``findings`` returns sentences instead. ``formats`` has the number formats that tables share, and ``markup``
writes a table of text as Markdown or LaTeX.
"""
