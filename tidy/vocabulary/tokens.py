"""Methods, fields and local names: (path globs, mode, {old: new}).

mode: any = every identifier; method = calls and definitions; dotfield = field uses and definitions (no shorthand).
"""
def R(text):
    out = {}
    for line in text.split('\n'):
        f = line.split()
        if len(f) == 2: out[f[0]] = f[1]
    return out

MIRROR = ['crates/mirror/*']
ENGINE = ['crates/engine/*']
POOL = ['crates/pool/*', 'fuzz/targets/pool_*']
CONTROL = ['crates/control/*']
API_USERS = ['crates/api/*', 'crates/control/*', 'crates/holdfast/*', 'crates/e2e/*', 'crates/csi/*', 'crates/agent/*', 'crates/engine/*', 'crates/operator/*']

TOKENS = [
    # --- block, model
    (['crates/*'], 'method', R('''
        leaves_doubt may_be_applied
    ''')),
    (['crates/store/*', 'crates/nvme/src/initiator/fault.rs'], 'any', R('''
        blame class
    ''')),
    (['crates/block/*', 'crates/mirror/*', 'crates/pool/*', 'crates/nvme/*', 'crates/engine/*', 'crates/control/*', 'crates/model/*', 'crates/store/*',
      'crates/agent/*', 'crates/csi/*', 'crates/holdfast/*', 'crates/e2e/*', 'crates/planner/*', 'crates/api/*', 'crates/linux/*', 'crates/operator/*'], 'method', R('''
        blame class
    ''')),
    (['crates/mirror/*', 'crates/engine/*', 'crates/model/*', 'crates/e2e/*', 'crates/control/*'], 'any', R('''
        usual default_for
    ''')),
    (['crates/planner/*', 'crates/control/*', 'crates/e2e/*', 'crates/holdfast/*'], 'any', R('''
        stray orphan
        strays orphans
        stray_targets orphan_targets
        stray_target orphan_target
        stray_replica orphan_replica
        stray_replicas orphan_replicas
        stray_snapshots orphan_snapshots
        sweep_stray_replica sweep_orphan_replica
        sweep_stray_snapshots sweep_orphan_snapshots
        weigh_strays weigh_orphans
    ''')),
    (['crates/*', 'fuzz/targets/*'], 'any', R('''
        memo spec_backup
        memos spec_backups
        MOST_MEMO MOST_SPEC_BACKUP
        watch_ca webhook_ca
        watch_tls webhook_tls
        until_watch until_webhook
    ''')),
    (['crates/planner/*'], 'any', R('''
        situation health
    ''')),
    (API_USERS, 'any', R('''
        was_there existed
        troubles issues
        put_watch put_webhook
        change_watch change_webhook
        delete_watch delete_webhook
        watches webhooks
        kept_events event_history
        KEPT_EVENTS EVENT_HISTORY
        NODE_FAREWELL DEREGISTER_NODE
        HOST_FAREWELL DEREGISTER_HOST
        PUT_MEMO PUT_SPEC_BACKUP
        WATCH WEBHOOK
        WATCHES WEBHOOKS
        PUT_WATCH PUT_WEBHOOK
        CHANGE_WATCH CHANGE_WEBHOOK
        DELETE_WATCH DELETE_WEBHOOK
        node_farewell deregister_node
        host_farewell deregister_host
        put_memo put_spec_backup
        heartbeat_farewell deregister
        held_back throttled
    ''')),
    (['crates/api/src/rest/*', 'crates/api/tests/*', 'crates/control/src/rest/*', 'crates/control/tests/it/watches.rs', 'crates/control/src/callbacks.rs',
      'crates/control/src/core/watch.rs', 'crates/control/src/core/entry.rs', 'crates/control/src/core/state.rs', 'crates/holdfast/src/cli/watch.rs', 'crates/holdfast/src/cli/mod.rs'], 'any', R('''
        watch webhook
        watch_seen webhook_seen
        alter_watch alter_webhook
        drop_watch drop_webhook
        make_watch make_webhook
        watches_page webhooks_page
    ''')),
    (CONTROL, 'any', R('''
        coming_watches pending_webhooks
        decide_change_watch decide_change_webhook
        decide_create_watch decide_create_webhook
        decide_delete_watch decide_delete_webhook
        MOST_WATCHES MOST_WEBHOOKS
    ''')),
    (['crates/api/src/rest/*', 'crates/api/src/route.rs', 'crates/api/src/table.rs', 'crates/control/src/testing/sim.rs', 'crates/control/src/rest/*', 'crates/control/src/shared.rs', 'crates/control/src/core/wish.rs', '!crates/api/src/rest/fake/seen.rs', '!crates/api/src/rest/fake/statuses.rs'], 'any', R('''
        seen if_match
    ''')),
    (['crates/control/*', 'crates/api/*'], 'recv:asked,request', R('''
        seen if_match
    ''')),
    # --- nvme
    (['crates/nvme/src/target/*', 'crates/nvme/tests/it/*'], 'any', R('''
        rim driver
    ''')),
    (['crates/engine/src/serve/messages.rs', 'crates/engine/src/serve/link.rs', 'crates/engine/src/serve/core.rs'], 'method', R('''
        told message_payload
        grant buffer_ready
    ''')),
    (['crates/nvme/src/target/*', 'crates/nvme/tests/it/*'], 'method', R('''
        told message_payload
        grant buffer_ready
    ''')),
    (['crates/nvme/src/target/connection/direct.rs', 'crates/nvme/src/target/testing/*', 'crates/nvme/tests/it/target/*', 'crates/nvme/src/target/connection/local_command.rs', 'crates/engine/src/serve/direct.rs', 'crates/engine/src/serve/local_path.rs'], 'method', R('''
        begin begin_local
    ''')),
    (['crates/nvme/src/initiator/*'], 'any', R('''
        login connect
    ''')),
    # --- pool
    (POOL, 'any', R('''
        tier layer_state
        change_tier change_layer_state
        choked waiting_for_checkpoint
        starved waiting_for_pages
        parked waiting_for_commit
        spare recycler
        geography disk_layout
        resum rechecksum
        end_choke end_checkpoint_wait
        feed_starved resume_waiting_for_pages
        is_choked is_over_budget
        _left_out _disabled
    ''')),
    (['crates/pool/src/pool/batch.rs', 'crates/pool/src/pool/commit.rs'], 'any', R('''
        proof needs_proof_group
        answers on_written
        waiters on_durable
    ''')),
    (['crates/pool/src/pool/*'], 'recv:open,batch', R('''
        proof needs_proof_group
        answers on_written
        waiters on_durable
    ''')),
    # --- mirror
    (MIRROR, 'any', R('''
        poke needs_rescan
        calm steady
        is_calm is_steady
        writers write_targets
        leave_writers leave_write_targets
        pump_sweep expire_intents
        aside awaiting_resync
        pump_aside pump_awaiting_resync
        step_aside await_resync
        verdict terminal_error
        held_back throttled
        order request
        pump_orders pump_requests
        fail_orders fail_requests
        order_rebuild request_rebuild
        leftovers orphans
        forget_leftover forget_orphan
        leftover_answered orphan_answered
        pump_leftovers pump_orphans
        remember_leftovers remember_orphans
        policy config
        yielding throttle
    ''')),
    (['crates/mirror/*', 'crates/engine/src/volumes/*', 'crates/engine/tests/*', 'crates/e2e/*'], 'any', R('''
        ask_around try_bypass
        went_around bypass_done
        come_back bypass_failed
        let_around allow_bypass
    ''')),
    (MIRROR, 'method', R('''
        must required_acks
        known cached_or
        doubt mark_for_resync
    ''')),
    (MIRROR, 'dotfield', R('''
        doubt resync
    ''')),
    (['crates/engine/src/volumes/*'], 'any', R('''
        policy config
    ''')),
    # --- engine
    (ENGINE, 'any', R('''
        obey apply
        bury reap
        hungry waiting_for_memory
        is_hungry is_waiting_for_memory
        to_its_end run_detached
        give_way close_predecessor
        lodger replica_entry
        lodgers replica_entries
        care maintenance
        order_pool apply_pool
        order_no_pool remove_pool
        order_replica apply_replica
        order_no_replica remove_replica
        order_target apply_target
        order_no_target remove_target
        order_snapshot apply_snapshot
        order_no_snapshot remove_snapshot
        order_target_snapshot apply_target_snapshot
        order_rebuild apply_rebuild
        order_scrub apply_scrub
        order_memo apply_spec_backup
        order_label apply_label
        order_fence apply_fence
        settle_target reconcile_target
        settle_children reconcile_children
        settle_hosts reconcile_hosts
        settle_limits reconcile_limits
        tell_news publish_events
        told_way reported_path
        ways_of paths_of_children
        no_replica missing_replica
        no_target missing_target
        no_snapshot missing_snapshot
    ''')),
    (['crates/engine/src/daemon/*'], 'method', R('''
        apart run_blocking
    ''')),
    (['crates/engine/src/daemon/*'], 'any', R('''
        door availability
    ''')),
    (['crates/engine/src/daemon/*', '!crates/engine/src/daemon/targets.rs', '!crates/engine/src/daemon/known.rs', '!crates/engine/src/daemon/pool_manifest.rs'], 'any', R('''
        home pool_entry
    ''')),
    (['crates/engine/src/serve/*'], 'any', R('''
        prover auth_worker
        keeper reservation_store
    ''')),
    (['crates/engine/src/serve/*', 'crates/engine/src/volumes/*'], 'any', R('''
        links connections
        link connection
        link_of connection_of
        pool_order pool_request
        volume_order volume_request
    ''')),
    (['crates/engine/src/serve/*', 'crates/engine/src/volumes/*'], 'method', R('''
        pass submit_local
        passed local_done
    ''')),
    (['crates/engine/src/serve/*', 'crates/engine/src/volumes/*'], 'any', R('''
        passed local_io
        hosted host_commands
    ''')),
    (['crates/engine/src/serve/core.rs', 'crates/engine/src/serve/open.rs'], 'any', R('''
        connection connection_config
    ''')),
    (['crates/engine/*', '!crates/engine/src/daemon/held.rs', '!crates/engine/src/daemon/generation_guard.rs'], 'method', R('''
        order request
    ''')),
    (['crates/e2e/*', 'crates/holdfast/*', 'crates/agent/*'], 'recv:pools,volumes,mirror', R('''
        order request
    ''')),
    (['crates/engine/src/device/*'], 'method', R('''
        elsewhere forward
    ''')),
    # --- control
    (CONTROL, 'any', R('''
        drive reconcile
        drive_pool reconcile_pool
        drive_volume reconcile_volume
        drive_replica reconcile_replica
        drive_target reconcile_target
        drive_snapshot reconcile_snapshot
        drive_group reconcile_group
        drive_node reconcile_node
        drive_quarantine reconcile_quarantine
        driven reconciling
        touch enqueue
        touch_everything enqueue_everything
        touch_all_of enqueue_all_of
        go_on_unpublishing continue_unpublish
        go_on_taking continue_snapshot
        go_on_resizing continue_resize
        go_on_republishing continue_republish
        go_on_publishing continue_publish
        go_on_deleting continue_delete
        go_on_creating continue_create
        go_on_cloning continue_clone
        why_never permanent_failure
        keep_after_all cancel_removal
        is_deaf unsubscribe
        is_mute listing_fails
        desk context
        leaf engine_object
        leaves engine_objects
        refresh_leaves refresh_engine_objects
        signs node_health
        telling draft
        tellings drafts
        take_wish take_request
        decide_wishes admit_requests
        rests back_offs
        raising sequence_timer
        on_memo on_spec_backup
        see_memo see_spec_backup
        newer_memos newer_spec_backups
        hopeless permanent_problem
        order_replica put_replica_spec
        MOST_ASKED MAX_PENDING_REQUESTS
    ''')),
    (['crates/control/src/core/*', 'crates/control/src/controller/*'], 'any', R('''
        wishes requests
        go_on continue_operation
    ''')),
    (CONTROL, 'any', R('''
        wish request
        wish_of request_of
    ''')),
    (['crates/control/src/core/leaf.rs'], 'any', R('''
        held applied
        listed present
        noted backed_up
        stirred last_call
    ''')),
    (['crates/control/src/core/*'], 'recv:leaf', R('''
        held applied
        listed present
        noted backed_up
        stirred last_call
    ''')),
    (['crates/control/src/core/*'], 'any', R('''
        stirred replan
        parked waiting_for_write
    ''')),
    (['crates/control/src/shared.rs', 'crates/control/src/lead.rs'], 'any', R('''
        stirred wakeup
    ''')),
    (['crates/control/src/core/mod.rs', 'crates/control/src/controller/mod.rs'], 'any', R('''
        ring fire_timers
    ''')),
    (['crates/control/src/core/wishes.rs', 'crates/control/src/controller/admission.rs'], 'method', R('''
        grant accept
    ''')),
    (['crates/control/src/core/*', 'crates/control/src/controller/*'], 'method', R('''
        rest back_off_volume
    ''')),
    # --- reactor
    (['crates/reactor/*', 'crates/engine/*'], 'any', R('''
        fetch_ahead prefetch
        copy_aside copy_nontemporal
    ''')),
    # --- local names that follow their types
    (MIRROR, 'any', R('''
        lane ranges
        around bypass_reads
        waiting_orders waiting_requests
        recorder record_writer
    ''')),
    (MIRROR, 'dotfield', R('''
        must required_acks
    ''')),
    (POOL, 'any', R('''
        lane ranges
        lanes ranges_by_id
        leave_lane leave_ranges
    ''')),
    (['crates/engine/src/serve/*'], 'any', R('''
        claim pin
        claim_or_choose pin_or_choose
        served exported
        routes directory
    ''')),
    (CONTROL + ['crates/e2e/src/bench/control.rs', 'crates/e2e/src/bench/control/*'], 'field', R('''
        core controller
    ''')),
    (['crates/csi/*', 'crates/agent/*', 'crates/holdfast/src/cli/volume.rs'], 'any', R('''
        wish action
    ''')),
    (['crates/planner/*'], 'any', R('''
        wish preference
    ''')),
    (['crates/api/*', 'crates/engine/*', 'crates/e2e/*', 'crates/holdfast/*', 'crates/model/*', 'crates/operator/*'], 'any', R('''
        wish request
        snapshot_wish snapshot_request
    ''')),
]
