"""How models are judged: search for translations, and scores of them. It knows no model and no task."""
