"""What becomes of a key of a config.json that its family does not read.

- A key in `IRRELEVANT` changes no parameter, FLOP or byte count, and is ignored.
- A key in `BESIDE` describes something that is not counted, and is reported by `models`.
- Any other key with the name and the value of a count is refused: the counts could be wrong.
- The rest is ignored with a note, unless its value is null.

Some families read some of the keys in `IRRELEVANT` for the model's arithmetic (`numerics`).
"""

from __future__ import annotations

from typing import Any

# Keys of what a model has besides its language model, and of how its files are stored.
BESIDE = frozenset(
    {
        *("vision_config", "audio_config", "quantization_config"),
        *("num_nextn_predict_layers", "num_mtp_layers"),  # layers that predict further tokens
        "sliding_window_size",  # says `sliding_window` again
    }
)

# Words in the names of counts: num_hidden_layers, hidden_size, head_dim, q_lora_rank, d_model.
COUNT_WORDS = frozenset(
    {
        *("num", "n", "d", "count", "size", "dim", "dims", "width", "rank"),
        *("heads", "layers", "experts", "channels"),
    }
)


def is_count(name: str, value: Any) -> bool:
    """Whether a key may state a count: a whole number from 1, or a list of them, so named.

    >>> is_count("num_new_experts", 4), is_count("num_new_experts", 0), is_count("new_scale", 4)
    (True, False, False)
    """
    numbers = value if isinstance(value, list) else [value]
    is_positive = any(type(number) is int and number > 0 for number in numbers)
    return is_positive and not COUNT_WORDS.isdisjoint(name.lower().split("_"))


IRRELEVANT = frozenset(
    {
        # names, versions, code
        *(
            "_name_or_path",
            "transformers_version",
            "auto_map",
            "torch_dtype",
            "dtype",
            "use_bfloat16",
        ),
        *("for_llm_compressor", "cache_implementation", "use_return_dict", "task_specific_params"),
        # token ids
        *("bos_token_id", "eos_token_id", "pad_token_id", "bos_token", "eos_token", "sep_token_id"),
        *("image_token_index", "image_token_id", "boi_token_index", "boi_token_id"),
        *("eoi_token_index", "eoi_token_id", "eot_token_index", "mm_tokens_per_image"),
        # initialisation and dropout
        *("initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout"),
        *("resid_pdrop", "embd_pdrop", "attn_pdrop", "resid_dropout", "embd_layer_dropout"),
        *("classifier_dropout", "classifier_dropout_prob", "summary_first_dropout"),
        *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        *("residual_dropout", "embedding_dropout"),
        # norms and activations: their constants and functions
        *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "swiglu_limit"),
        *("hidden_act", "hidden_activation", "activation_function"),
        # positions without parameters
        *(
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "rope_local_base_freq",
            "rope_interleave",
        ),
        *("rotary_emb_base", "rotary_pct", "partial_rotary_factor", "initial_context_length"),
        *("original_max_position_embeddings", "max_window_layers", "n_ctx"),
        *("sliding_window_pattern", "_sliding_window_pattern"),  # `layer_types` says it
        # scaling of attention scores and logits
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
        *("attn_temperature_tuning", "attn_scale", "floor_scale"),
        # arithmetic of routing, and losses
        *("norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group"),
        *("routed_scaling_factor", "seq_aux", "aux_loss_alpha", "router_aux_loss_coef"),
        *("router_jitter_noise", "output_router_logits", "ep_size", "pretraining_tp"),
        # what the architecture says again, in files of Cohere, StarCoder 2 and SmolLM2
        *("layer_switch", "order_of_interleaved_layers", "position_embedding_type"),
        *("use_embedding_sharing", "use_gated_activation", "use_parallel_block"),
        *("use_parallel_embedding", "mlp_type", "norm_type", "is_llama_config"),
        *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
        # outputs of a run
        *("use_cache", "output_hidden_states", "output_attentions", "output_past", "is_decoder"),
        *("gradient_checkpointing", "summary_activation", "summary_proj_to_labels"),
        "apply_residual_connection_post_layernorm",  # where the sum starts, not what is summed
        *("summary_type", "summary_use_proj", "return_dict", "chunk_size_feed_forward"),
        *("id2label", "label2id", "problem_type", "is_encoder_decoder", "num_labels"),
        *("add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder"),
        *("finetuning_task", "prefix", "pruned_heads", "tokenizer_class", "torchscript"),
        *("tf_legacy_loss", "num_logits_to_keep", "use_mtp"),
        # how text is generated, which earlier files state too
        *("max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping"),
        *("num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty"),
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id"),
        *("suppress_tokens", "begin_suppress_tokens", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "output_scores", "return_dict_in_generate"),
    }
)
