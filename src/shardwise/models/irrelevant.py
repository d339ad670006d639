"""Keys of a config.json that change no parameter, FLOP or byte count, by subject.

Some families read some of these keys for the model's arithmetic (`numerics`); only keys that a
family does not read are reported as ignored.
"""

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
        # scaling of attention scores and logits
        *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
        *("attn_temperature_tuning", "attn_scale", "floor_scale"),
        # arithmetic of routing, and losses
        *("norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group"),
        *("routed_scaling_factor", "seq_aux", "aux_loss_alpha", "router_aux_loss_coef"),
        *("router_jitter_noise", "output_router_logits", "ep_size", "pretraining_tp"),
        # outputs of a run
        *("use_cache", "output_hidden_states", "output_attentions", "output_past", "is_decoder"),
        *("gradient_checkpointing", "summary_activation", "summary_proj_to_labels"),
        "apply_residual_connection_post_layernorm",  # where the sum starts, not what is summed
        *("summary_type", "summary_use_proj", "return_dict", "chunk_size_feed_forward"),
        *("id2label", "label2id", "problem_type", "is_encoder_decoder"),
    }
)
