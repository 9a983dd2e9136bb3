"""Which family of providers answers under a host name or a label: one table, because a habit is a family's."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

HOSTS: Final[tuple[tuple[str, str], ...]] = (
    (".openai.azure.com", "azure_openai"),
    (".cognitiveservices.azure.com", "azure_openai"),
    (".services.ai.azure.com", "azure_openai"),
    (".azure-api.net", "azure_openai"),
    (".models.ai.azure.com", "azure_openai"),
    ("models.inference.ai.azure.com", "github_models"),
    ("models.github.ai", "github_models"),
    (".githubcopilot.com", "github_models"),
    (".openai.com", "openai"),
    (".anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "google_gemini"),
    ("aiplatform.googleapis.com", "vertex"),
    (".amazonaws.com", "bedrock"),
    (".openrouter.ai", "openrouter"),
    (".groq.com", "groq"),
    (".mistral.ai", "mistral"),
    (".cohere.com", "cohere"),
    (".cohere.ai", "cohere"),
    (".x.ai", "xai"),
    (".deepseek.com", "deepseek"),
    (".together.xyz", "together"),
    (".together.ai", "together"),
    (".fireworks.ai", "fireworks"),
    (".bigmodel.cn", "zhipu"),
    (".z.ai", "zhipu"),
    (".moonshot.cn", "moonshot"),
    (".moonshot.ai", "moonshot"),
    (".kimi.com", "moonshot"),
    ("dashscope", "dashscope"),
    (".maas.aliyuncs.com", "dashscope"),
    (".minimax.io", "minimax"),
    (".minimaxi.com", "minimax"),
    (".minimax.chat", "minimax"),
    (".baidubce.com", "baidu"),
    (".volces.com", "volcengine"),
    (".volcengineapi.com", "volcengine"),
    (".bytepluses.com", "volcengine"),
    (".tencentcloudapi.com", "tencent"),
    (".cloud.tencent.com", "tencent"),
    (".siliconflow.cn", "siliconflow"),
    (".siliconflow.com", "siliconflow"),
    (".huggingface.co", "huggingface"),
    (".endpoints.huggingface.cloud", "tgi"),
    ("integrate.api.nvidia.com", "nvidia_nim"),
    (".nvcf.nvidia.com", "nvidia_nim"),
    ("ai.api.nvidia.com", "nvidia_nim"),
    (".perplexity.ai", "perplexity"),
    (".cerebras.ai", "cerebras"),
    (".sambanova.ai", "sambanova"),
    (".replicate.com", "replicate"),
    ("ai-gateway.vercel.sh", "vercel_gateway"),
    ("gateway.ai.cloudflare.com", "cloudflare"),
    ("api.cloudflare.com", "cloudflare"),
    (".portkey.ai", "portkey"),
    (".ollama.com", "ollama"),
    (".databricks.com", "databricks"),
    (".azuredatabricks.net", "databricks"),
    (".ml.cloud.ibm.com", "watsonx"),
    (".novita.ai", "novita"),
    (".deepinfra.com", "deepinfra"),
    (".hyperbolic.xyz", "hyperbolic"),
    (".nebius.com", "nebius"),
    (".nebius.ai", "nebius"),
    (".opencode.ai", "opencode_zen"),
    (".featherless.ai", "featherless"),
    (".kilo.ai", "kilo"),
    (".kilocode.ai", "kilo"),
    (".neuralwatt.com", "neuralwatt"),
    (".xiaomimimo.com", "mimo"),
    (".ai21.com", "ai21"),
    (".chutes.ai", "chutes"),
)
"""Ends of host names (a leading dot also stands for the bare name); the first that fits wins. A name without
a dot in front and without any dot is looked for anywhere in the first label."""

PORTS: Final = {"11434": "ollama", "1234": "lmstudio"}
"""Ports that only one kind of local server listens on by default."""

ALIASES: Final = {
    "azure": "azure_openai", "copilot": "github_models", "github_copilot": "github_models", "github": "github_models",
    "gemini": "google_gemini", "google": "google_gemini", "google_ai_studio": "google_gemini",
    "aistudio": "google_gemini",
    "vertex_ai": "vertex", "google_vertex": "vertex", "aws": "bedrock", "amazon": "bedrock", "aws_bedrock": "bedrock",
    "amazon_bedrock": "bedrock", "grok": "xai", "z_ai": "zhipu", "zai": "zhipu", "glm": "zhipu", "bigmodel": "zhipu",
    "kimi": "moonshot", "moonshotai": "moonshot", "alibaba": "dashscope", "qwen": "dashscope", "bailian": "dashscope",
    "aliyun": "dashscope", "qianfan": "baidu", "ernie": "baidu", "ark": "volcengine", "doubao": "volcengine",
    "byteplus": "volcengine", "hunyuan": "tencent", "hf": "huggingface", "nvidia": "nvidia_nim", "nim": "nvidia_nim",
    "workers_ai": "cloudflare", "cloudflare_ai_gateway": "cloudflare", "cloudflare_workers_ai": "cloudflare",
    "vercel": "vercel_gateway", "vercel_ai_gateway": "vercel_gateway", "oneapi": "new_api", "one_api": "new_api",
    "newapi": "new_api", "llama_cpp": "llamacpp", "llama_server": "llamacpp", "lm_studio": "lmstudio",
    "together_ai": "together", "togetherai": "together", "fireworks_ai": "fireworks", "mistralai": "mistral",
    "text_generation_inference": "tgi", "opencode": "opencode_zen", "zen": "opencode_zen", "claude": "anthropic",
    "ibm": "watsonx", "ibm_watsonx": "watsonx", "litellm_proxy": "litellm", "ollama_cloud": "ollama",
}  # fmt: skip

_SHAPES: Final = {
    "openai": "error_object",
    "anthropic": "error_object",
    "google_gemini": "error_object array",
    "vertex": "error_object array",
    "azure_openai": "error_object flat",
    "bedrock": "flat error_object",
    "openrouter": "error_object",
    "groq": "error_object",
    "mistral": "flat detail error_object",
    "cohere": "flat",
    "xai": "error_string flat error_object text",
    "deepseek": "error_object",
    "together": "error_object text",
    "fireworks": "error_object error_string flat",
    "zhipu": "error_object flat error_string",
    "moonshot": "error_object flat error_string",
    "dashscope": "flat error_object",
    "minimax": "error_object base_resp",
    "baidu": "error_object flat",
    "volcengine": "error_object",
    "tencent": "error_object other flat",
    "siliconflow": "flat bare_string",
    "huggingface": "error_string error_object text",
    "nvidia_nim": "problem detail error_object error_string text",
    "perplexity": "error_object html",
    "cerebras": "flat error_object",
    "sambanova": "error_object error_string text",
    "replicate": "problem detail",
    "cloudflare": "errors_list error_object",
    "github_models": "error_object text flat",
    "vercel_gateway": "error_object",
    "portkey": "flat error_object error_string",
    "litellm": "error_object detail",
    "new_api": "error_object flat",
    "ollama": "error_string error_object text",
    "vllm": "error_object flat detail error_string",
    "sglang": "error_object flat detail error_string",
    "tgi": "error_string error_object",
    "llamacpp": "error_object",
    "lmstudio": "error_string error_object",
    "localai": "error_object",
    "databricks": "flat",
    "watsonx": "errors_list flat",
    "novita": "flat error_object",
    "deepinfra": "error_object detail error_string",
    "nebius": "detail error_object",
    "hyperbolic": "error_object flat detail",
    "opencode_zen": "error_object",
}
PROVIDER_RULES: Final[dict[str, frozenset[str]]] = {name: frozenset(row.split()) for name, row in _SHAPES.items()}
"""The outlines in which a family is known to say 401, 403 and 404. Any other is a stranger's (SPEC 3)."""

_KNOWN: Final = frozenset(PROVIDER_RULES) | {family for _, family in HOSTS} | frozenset(PORTS.values())


@lru_cache(maxsize=4096)
def family_of(provider: str) -> str:
    """The family of a provider's host or label, or the empty string for one that nobody here knows."""
    name = provider[:256].lower().partition("#")[0].partition("@")[0].strip()
    if "://" in name:
        name = name.partition("://")[2]
    name = name.partition("/")[0]
    label = name.replace("-", "_").replace(" ", "_")
    if label in _KNOWN:
        return label
    if label in ALIASES:
        return ALIASES[label]
    host, _, port = name.rpartition(":") if name.rpartition(":")[2].isdigit() else (name, "", "")
    if host.endswith(".amazonaws.com") and not host.startswith(("bedrock", "runtime.sagemaker")):
        return ""
    for pattern, family in HOSTS:
        if pattern[0] == ".":
            if host.endswith(pattern) or host == pattern[1:]:
                return family
        elif host.endswith(pattern) or ("." not in pattern and pattern in host.partition(".")[0]):
            return family
    return PORTS.get(port, "")
