"""Estimators on the site as Python shows them: parameters and docstrings are made when they are imported.

mkdocs.yml names this file under the `extensions` of mkdocstrings.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import griffe

CLASSES = ("base.FederatedEstimator", "regressor.PACPFLRegressor", "classifier.PACPFLClassifier")


class Estimators(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **more: Any) -> None:
        for name in CLASSES:
            shown: Any = pkg[f"estimators.{name}"]
            made = griffe.dynamic_import(shown.path)
            shown.docstring.value = inspect.getdoc(made)
            for part in fields(made):
                shown["__init__"].parameters[part.name].default = repr(part.default)
                shown.members.pop(part.name, None)
