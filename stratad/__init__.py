"""stratad: serves mixture-of-experts models from host RAM with verified placement."""

__all__: list[str] = []
