"""A feature tree to features.json, in the form that TFDS 4.9 writes."""

from __future__ import annotations

from typing import Any

import torch_tfrecord.tfds.features as f

__all__ = ["features_to_json"]

_PACKAGE = "tensorflow_datasets.core.features."
_MODULES = {
    "Audio": "audio_feature",
    "BBoxFeature": "bounding_boxes",
    "ClassLabel": "class_label_feature",
    "Dataset": "dataset_feature",
    "FeaturesDict": "features_dict",
    "Image": "image_feature",
    "LabeledImage": "labeled_image",
    "Scalar": "scalar",
    "Sequence": "sequence_feature",
    "Tensor": "tensor_feature",
    "Text": "text_feature",
    "Translation": "translation_feature",
    "TranslationVariableLanguages": "translation_feature",
    "Video": "video_feature",
}


def features_to_json(feature: f.FeatureConnector) -> dict[str, Any]:
    """The new form of a tree, as TFDS 4.9 writes it.

    Raises:
        ValueError: An `UnknownFeature`.
    """
    name = type(feature).__name__
    if name not in _MODULES:
        raise ValueError(f"a feature of class {name} cannot be written")
    key, content = _written(feature)
    node = {"pythonClassName": f"{_PACKAGE}{_MODULES[name]}.{name}", key: content}
    if feature.doc:
        node["description"] = feature.doc
    return node


def _written(feature: f.FeatureConnector) -> tuple[str, dict[str, Any]]:
    """Content key and content."""
    if isinstance(feature, f.FeaturesDict):
        return "featuresDict", {"features": {name: features_to_json(item) for name, item in feature.items()}}
    if isinstance(feature, f.Sequence):
        length = "-1" if feature.length is None else str(feature.length)
        return "sequence", {"feature": features_to_json(feature.feature), "length": length}
    if isinstance(feature, (f.Tensor, f.Scalar)):
        return "tensor", _written_tensor(feature)
    if isinstance(feature, f.ClassLabel):
        return "classLabel", {"numClasses": str(feature.num_classes or 0)}
    if isinstance(feature, (f.Image, f.LabeledImage, f.Video)):
        return _written_pixels(feature)
    if isinstance(feature, f.Audio):
        return "audio", _written_audio(feature)
    if isinstance(feature, f.BBoxFeature):
        box = {"shape": {"dimensions": ["4"]}, "dtype": "float32"}
        return "boundingBox", box if feature.bbox_format is None else {**box, "bboxFormat": feature.bbox_format}
    if isinstance(feature, (f.Translation, f.TranslationVariableLanguages)):
        content: dict[str, Any] = {"languages": list(feature.languages or ())}
        if isinstance(feature, f.TranslationVariableLanguages):
            content["variableLanguagesPerExample"] = True
        return "translation", content
    return "text", {}


def _written_tensor(feature: f.Tensor | f.Scalar) -> dict[str, Any]:
    content: dict[str, Any] = {"shape": _written_shape(feature.shape), "dtype": feature.dtype}
    content["encoding"] = feature.encoding
    limits = {"minimum": feature.minimum, "maximum": feature.maximum}
    content |= {name: value for name, value in limits.items() if value is not None}
    return {**content, "optional": True} if feature.optional else content


def _written_pixels(feature: f.Image | f.LabeledImage | f.Video) -> tuple[str, dict[str, Any]]:
    content: dict[str, Any] = {"shape": _written_shape(feature.shape), "dtype": feature.dtype}
    if feature.encoding_format:
        content["encodingFormat"] = feature.encoding_format
    if feature.use_colormap:
        content["useColormap"] = True
    if isinstance(feature, f.LabeledImage):
        content["label"] = {"numClasses": str(feature.num_classes or 0)}
    return "video" if isinstance(feature, f.Video) else "image", content


def _written_audio(feature: f.Audio) -> dict[str, Any]:
    content: dict[str, Any] = {"shape": _written_shape(feature.shape), "dtype": feature.dtype}
    content |= {"encoding": feature.encoding.upper(), "lazyDecode": feature.lazy_decode}
    if feature.file_format:
        content["fileFormat"] = feature.file_format
    return {**content, "sampleRate": str(feature.sample_rate)} if feature.sample_rate else content


def _written_shape(shape: tuple[int | None, ...]) -> dict[str, Any]:
    return {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
