"""The checklist: one claim about attribution per file, in this order of reading.

test_headroom            this run can tell estimators apart (no estimator is on trial)
test_gradient_magnitude  the estimator beats gradient size, and does not live on it
test_fluency_control     its ranking survives fluency
test_reward_control      it says more than reward, topic and time
test_trigger_alignment   its score sits on the trigger tokens
test_target_context      it answers for the behaviour asked
test_coverage            it sees the parameters that carry the behaviour
test_lookalikes          it finds causes, not look-alikes
test_seed_stability      its verdict does not depend on seed or draw
"""
