"""Why a request waited: where the time between its arrival and its end went. Reads events only."""

from batchlab.explain.explainer import Explainer
from batchlab.explain.explanation import Explanation, conclude, explain

__all__ = ["Explainer", "Explanation", "conclude", "explain"]
