//! The calls of the fleet to the simulated backend.

use api::Timestamp;

use super::*;

impl EngineBackend for FaultBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Ping, |_| Ok(()))
    }

    fn has_single_image(&self) -> bool {
        self.state().single_image
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            self.respond(BackendCall::CheckImage, |_| Ok(())).await?;
            let known = {
                let state = self.state();
                let known = image.major() == 0 || state.extra_images.contains(image);
                known && !state.missing_images.contains(image)
            };
            if known { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    fn addressing(&self) -> Addressing {
        self.addressing
    }

    fn port_is_free(&self, port: u16) -> bool {
        assert_eq!(self.addressing, Addressing::HostPort, "its engines have no ports");
        let state = self.state();
        let placement = Placement::HostPort(port);
        !state.occupied_ports.contains(&port)
            && state.running.values().all(|(_, launch)| launch.placement != placement)
    }

    fn address(&self, engine_id: EngineId, placement: Placement) -> Option<SocketAddr> {
        self.assert_known(placement);
        self.state().address(engine_id, placement)
    }

    fn url_authority(&self, engine_id: EngineId, placement: Placement) -> Option<String> {
        self.assert_known(placement);
        Some(match placement {
            Placement::HostPort(port) => format!("127.0.0.1:{port}"),
            Placement::OwnAddress => format!("{engine_id}.engines:8000"),
        })
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        let has_data = self.state().folders.contains(&engine_id);
        Box::pin(std::future::ready(Ok(has_data)))
    }

    fn list_data(&self, engine_id: Option<EngineId>) -> BackendFuture<'_, Option<Vec<DataListing>>> {
        self.respond(BackendCall::ListData, move |backend| {
            let (state, now) = (backend.state(), backend.clock.now());
            let wanted =
                state.folders.iter().filter(|id| engine_id.is_none_or(|engine_id| engine_id == **id));
            let listed = wanted.map(|id| {
                let changed_at =
                    if state.old_folders.contains(id) { Timestamp::from_unix_ms(0) } else { now };
                DataListing { engine_id: *id, has_brain: true, changed_at }
            });
            Ok(Some(listed.collect()))
        })
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        let has_data = self.state().folders.contains(&launch.engine_id);
        assert!(launch.is_first || has_data, "only the first launch of an engine creates its folder");
        self.respond(BackendCall::Launch, move |backend| {
            let engine_id = launch.engine_id;
            backend.end_target(launch.target(), "replaced")?;
            backend.assert_known(launch.placement);
            if let Some(port) = launch.placement.host_port() {
                assert!(backend.port_is_free(port), "two engines on port {port}");
            }
            let mut state = backend.state();
            let instance = Instance::new(format!("instance {}", state.launches.len()));
            state.remains.remove(&engine_id);
            state.folders.insert(engine_id);
            state.launches.push(launch.clone());
            let (major, format) = (launch.image.major(), state.brain_formats.entry(engine_id).or_default());
            let can_open = *format <= major;
            *format = major.max(*format);
            let starts = can_open && !state.crashing_images.contains(&launch.image);
            state.running.insert(engine_id, (instance.clone(), launch));
            backend.assign_address(&mut state, engine_id);
            drop(state);
            if !starts {
                backend.end(engine_id, "exit status: 1");
            }
            Ok(instance)
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        assert_eq!(grace, Duration::from_secs(30), "the contract's grace");
        self.respond(BackendCall::Stop, move |backend| backend.end_target(target, "exit status: 0"))
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Kill, move |backend| backend.end_target(target, "killed"))
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Kill, move |backend| {
            backend.end_target(target, "killed")?;
            backend.state().remains.remove(&target.engine_id);
            Ok(())
        })
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Remove, move |backend| {
            backend.end_target(target, "killed")?;
            let mut state = backend.state();
            state.remains.remove(&target.engine_id);
            state.folders.remove(&target.engine_id);
            Ok(())
        })
    }

    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy> {
        self.respond(BackendCall::KeepCopy, move |backend| {
            let mut state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is copied"
            );
            let format = state.brain_formats.get(&target.engine_id).copied().unwrap_or_default();
            state.brain_copies.insert(target.engine_id, format);
            Ok(BrainCopy { format: u32::try_from(format).ok() })
        })
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::RestoreCopy, move |backend| {
            let mut state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is replaced"
            );
            let format = state.brain_copies[&target.engine_id];
            state.brain_formats.insert(target.engine_id, format);
            Ok(())
        })
    }

    fn brain_formats(&self, target: Target) -> BackendFuture<'_, BrainFormats> {
        self.respond(BackendCall::BrainFormats, move |backend| {
            let state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is looked at"
            );
            let format = |format: u64| u32::try_from(format).ok();
            let copy = state.brain_copies.get(&target.engine_id);
            Ok(BrainFormats {
                brain: state.brain_formats.get(&target.engine_id).and_then(|brain| format(*brain)),
                copy: copy.map(|copy| BrainCopy { format: format(*copy) }),
            })
        })
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        self.respond(BackendCall::List, |backend| {
            let state = backend.state();
            let running = state.running.iter().map(|(engine_id, (instance, launch))| EngineListing {
                engine_id: *engine_id,
                instance: instance.clone(),
                generation: launch.generation,
                running: true,
            });
            let strays = state.strays.iter().cloned();
            let remains = state.remains.iter().map(|(engine_id, instance)| EngineListing {
                engine_id: *engine_id,
                instance: instance.clone(),
                generation: 0,
                running: false,
            });
            Ok(running.chain(strays).chain(remains).collect())
        })
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        let mut listener = self.listener.lock().unwrap().take().expect("one listener");
        futures::stream::poll_fn(move |context| listener.poll_recv(context)).boxed()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        let is_running = {
            let state = self.state();
            state.running.values().any(|(other, _)| other == instance)
                || state.strays.iter().any(|stray| stray.instance == *instance)
        };
        Box::pin(std::future::ready(Ok(is_running)))
    }

    fn log_tail(&self, _: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        self.respond(BackendCall::LogTail, move |_| {
            let log = ["engine began", "the last words"];
            Ok(log.iter().skip(log.len().saturating_sub(lines)).map(ToString::to_string).collect())
        })
    }

    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        let state = self.state();
        let resource_limits = state.resource_limits.filter(|_| state.running.contains_key(&engine_id));
        Box::pin(std::future::ready(Ok(resource_limits)))
    }
}
