"""Sentences that speak of a model and of something missing, and not of a missing model: nowhere a dead model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sickbay_events.classify import classify
from sickbay_events.classify.provider_rules import PROVIDER_RULES

OURS = "m-9-1"
SENTENCES = [
    (400, "Tool 'x' is not supported by model m-9-1"),
    (400, "The model does not support the requested voice: 'nova' not found"),
    (404, "Conversation not found for model m-9-1"),
    (400, "model with streaming is not supported"),
    (400, "The model m-9-1 is not available for batch requests"),
    (403, "The model m-9-1 is not available on your plan"),
    (403, "Model m-9-1 not enabled for this key"),
    (503, "The model m-9-1 is temporarily not available"),
    (503, "Model m-9-1 is not available right now, please retry"),
    (503, "No healthy upstream for model m-9-1"),
    (429, "No available accounts for model m-9-1"),
    (400, "Model m-9-1 is not supported with response_format json_schema"),
    (400, "Unsupported model parameter: temperature"),
    (400, "Invalid model output: expected JSON"),
    (400, "Unknown model family option 'foo'"),
    (400, "Fine-tuning job for model m-9-1 not found"),
    (404, "File for model m-9-1 not found"),
    (404, "Route /v1/models/m-9-1/generate not found"),
    (400, "model field is required"),
    (400, "model must be a string"),
    (400, "Model name too long"),
    (400, "tokenizer for model m-9-1 not found"),
    (500, "Failed to download tokenizer for model m-9-1: not found"),
    (502, "Model m-9-1: upstream returned 404 page not found"),
    (404, "The requested model version's cache entry was not found"),
    (400, "The model m-9-1 does not exist in the fallback list"),
    (400, "Image model m-image does not exist; you asked for m-9-1"),
    (400, "Models m-8-2 does not exist"),
    (404, "The model `m-9-10` does not exist"),
    (404, "The model `m-9-1-mini` does not exist"),
    (404, "Model acme/m-9-1-turbo not found"),
    (500, "Model m-9-1 crashed: CUDA device not found"),
    (400, "Model does not support images"),
    (400, "this model's maximum context length is not supported: 9999"),
    (401, "Model m-9-1 requires authentication; key not found"),
    (402, "Model m-9-1 not available: insufficient credits"),
    (403, "Access to m-9-1 not found for this workspace"),
    (400, "stop sequences are not supported by this model"),
    (400, "adapter not found for the model m-9-1"),
    (404, "Organization not found while resolving model m-9-1"),
    (404, "Project not found or model access disabled"),
    (400, "price for model m-9-1 not found"),
    (400, "Prompt template not found for model m-9-1"),
    (400, "The parameter `model_kwargs` is not supported"),
    (400, "Voice 'x' does not exist for model m-9-1"),
    (404, "Embedding index not found. Model: m-9-1"),
    (404, "No such endpoint. Did you mean /v1/models?"),
    (403, "Model m-9-1 is not allowed by your organization policy"),
    (403, "This model is not permitted in region eu"),
    (400, "Provider for model m-9-1 not configured: missing API key"),
    (500, "could not find GPU for model m-9-1"),
    (503, "model m-9-1 is not ready"),
    (503, "Model m-9-1 not loaded yet"),
    (503, "no workers available for model m-9-1"),
    (400, "n > 1 is not available for model m-9-1"),
    (400, "reasoning effort 'max' not valid for model m-9-1"),
    (400, "The model is not valid JSON"),
    (400, "Deployment region not supported"),
    (404, "resource 'deployments/default' not found"),
    (404, "Session for model m-9-1 was not found or expired"),
    (404, "Batch with model m-9-1 not found"),
    (400, "Modell unterstützt keine Bilder"),
    (404, "Datei für Modell nicht gefunden"),
    (400, "El modelo no admite imágenes"),
    (400, "该模型不支持图片输入"),
    (400, "当前模型不支持 tools 参数"),
    (503, "模型繁忙，请稍后重试"),
    (429, "模型请求过多"),
    (403, "您的套餐不包含该模型"),
    (400, "模型参数错误：temperature"),
    (404, "文件不存在"),
    (404, "会话不存在"),
    (400, "工具不存在，请检查模型返回的工具名"),
    (500, "モデルの読み込み中です"),
    (400, "モデルはこの機能をサポートしていません"),
    (400, "Model m-9-1 has reached its output limit"),
    (400, "model has reached its end of turn without tool call"),
    (400, "The model was removed from the queue, retry"),
    (503, "Model m-9-1 has been disabled for maintenance"),
    (503, "The model has been taken offline for maintenance, back in 10 minutes"),
    (200, "The model m-8-9 does not exist"),
    (500, "unknown model error"),
    (500, "Unknown model state"),
    (400, "invalid model input"),
    (400, "no model found in request"),
    (400, "model_id not found in request body"),
    (404, "model registry not found"),
    (404, "No models found for your account"),
    (404, "The inference endpoint for this model is paused, ask a maintainer to restart it"),
    (400, "Endpoint is scaled to zero; model not running"),
    (404, "Thread not found. The model m-9-1 was used."),
    (400, "LoRA rank not supported by the model"),
    (404, "Assistant using m-9-1 not found"),
    (400, "Dataset for fine-tuning m-9-1 does not exist"),
    (404, "The run was not found; model m-9-1 had been requested"),
    (400, "Unsupported value for model m-9-1: 'seed'"),
    (400, "m-9-1 does not support logprobs"),
    (400, "Streaming is not available for m-9-1"),
    (403, "m-9-1 is restricted to tier 3 customers"),
    (403, "Your key has no permission for m-9-1"),
    (429, "m-9-1 is not available: too many requests"),
    (503, "m-9-1 is not available due to high load"),
    (503, "Backend for m-9-1 is not available"),
    (502, "Bad gateway: model server not found"),
    (500, "Model weights not found on this node, retrying elsewhere"),
    (500, "model checkpoint could not be found on replica 3"),
    (400, "The requested model output format is not supported"),
    (400, "Model card not found"),
    (404, "Model download URL not found"),
    (400, "grammar not supported by the model"),
    (400, "The model cannot find the answer; parse failed"),
    (400, "The selected model is not compatible with tools"),
    (400, "Model alias mapping not configured for user"),
    (404, "Unknown path /models/m-9-1:predict"),
    (404, "Invalid URL (POST /v1/model/m-9-1)"),
    (404, "Cannot POST /api/models/m-9-1/generate"),
    (400, "deployment_id is not valid"),
    (400, "engine parameter is not supported"),
    (400, "The model's max_tokens is not valid"),
    (400, "Cache for model m-9-1 does not exist"),
    (404, "Vector store not found for this model"),
    (400, "Function get_model not found"),
    (400, "tool 'find_model' does not exist"),
    (400, "Function call name 'model' is unknown"),
    (404, "No tools found with model m-9-1"),
    (400, "No image found with model input"),
    (500, "error: no model loaded in slot 3, loading"),
    (503, "Loading model"),
    (503, "model is being downloaded, not available yet"),
    (400, "Model is not supported for this request."),
    (400, "model `m-9-1` is not supported for function calling"),
    (400, "The model is not supported by this SDK version"),
    (400, "This model isn't supported in your country"),
    (403, "model isn't available in your workspace"),
    (400, "Model isn't available for free users"),
    (400, "Reasoning model does not exist in request options"),
    (422, "body.model: value is not a valid enumeration member"),
    (422, "[{'loc': ['body', 'model'], 'msg': 'not a valid string'}]"),
    (400, "您请求的模型不支持该参数"),
    (400, "模型返回的工具不存在"),
    (404, "模型文件不存在，请重新上传"),
    (400, "模型输出为空"),
    (403, "无权限访问该模型"),
    (503, "模型服务暂不可用"),
    (400, "Die Datei existiert nicht"),
    (404, "La page du modèle est introuvable"),
    (404, "El archivo para el modelo no existe"),
    (400, "O parâmetro do modelo não existe"),
    (404, "Файл для модели не найден"),
    (401, "Model provider account not found"),
    (404, "The user who owns this model was not found"),
    (400, "unknown model_type option"),
    (400, "model version header not found"),
    (500, "Error while running model: key 'x' not found"),
    (500, "model failed: column not found"),
    (404, "Agent m-9-1-agent not found"),
    (400, "The attached model file is not supported"),
    (404, "Snapshot of model m-9-1 not found"),
    (400, "Model m-9-1 can't be used with service_tier flex"),
    (400, "service tier 'flex' is not available for this model"),
    (400, "Prefill is not supported on this model"),
    (400, "cache_control is not supported for model m-9-1"),
    (403, "m-9-1 is only available to enterprise customers"),
    (403, "Access denied: model m-9-1 is not part of your package"),
    (500, "Model m-9-1 unavailable, engine restarting"),
    (503, "model unavailable"),
    (503, "The model is currently not supported due to capacity"),
    (429, "Model m-9-1 not available until quota resets"),
    (400, "Tokenizer not found"),
    (400, "Model m-9-1 does not exist on replica 2, rescheduling"),
    (400, "'model_version' is not supported"),
    (400, "model: expected string, received null"),
    (400, "Image URL not found by the model fetcher"),
    (404, "Prediction not found"),
    (404, "Object 'chat' of model API not found"),
    (400, "Model m-9-1 has been deprecated for fine-tuning only"),
    (400, "modelId parameter not found"),
    (400, "The speech model's voice is unknown"),
    (400, "Unknown argument: model_name_or_path"),
    (400, "no model with tools available for this request"),
    (404, "Not found: no route for model group"),
    (400, "invalid model_kwargs"),
    (403, "Model not available for your tier; upgrade"),
    (400, "model m-9-1 was not found in cost map, pricing skipped"),
    (404, "The requested model deployment slot was not found"),
]
"""(status, what an answer says when `m-9-1` was asked for)"""

DEAD = [
    (404, "The model `m-9-1` does not exist"),
    (404, "Model m-9-1 not found"),
    (400, "m-9-1 is not a valid model ID"),
    (404, "Unknown model: m-9-1"),
    (410, "The model m-9-1 has reached its end of life"),
    (404, "The model or endpoint m-9-1 does not exist"),
    (404, "The model m-9-1 was removed"),
    (400, "Model m-9-1 is not supported"),
    (404, "模型m-9-1不存在"),
]
"""The like of which do say it, so that the rule above is not kept by saying nothing."""


def envelopes(says: str) -> list[Any]:
    """The outlines in which relays and servers wrap a sentence."""
    return [
        {"error": {"message": says}},
        {"error": says},
        {"detail": says},
        {"error": {"message": says, "type": "not_found_error", "code": None}},
        {"message": says, "code": "NOT_FOUND"},
    ]


def kinds(status: int, says: str, families: list[str]) -> set[str]:
    return {
        f"{verdict.kind} at {family or 'nobody'}"
        for body in envelopes(says)
        for family in families
        if (
            verdict := classify(
                status=status,
                headers={"content-type": "application/json"},
                body=json.dumps(body).encode(),
                requested_model=OURS,
                provider=family,
            )
        ).kind
        == "model_unavailable"
    }


@pytest.mark.parametrize(("status", "says"), SENTENCES)
def test_what_is_missing_is_not_the_model_whoever_says_it(status: int, says: str) -> None:
    """In every envelope, at every family and at none (SPEC 3: a false rejection is the worst error)."""
    assert kinds(status, says, ["", *PROVIDER_RULES]) == set()


@pytest.mark.parametrize(("status", "says"), DEAD)
def test_what_is_missing_is_the_model(status: int, says: str) -> None:
    assert kinds(status, says, [""]) == {"model_unavailable at nobody"}
