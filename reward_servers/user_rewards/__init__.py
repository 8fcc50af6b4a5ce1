"""Users' rewards and metrics: their forms, trial calls and sandbox."""
