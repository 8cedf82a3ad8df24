//! Skills as API callers list, read, create, change, delete and export them.

use api::SkillName;
use api::skills::{self, CreateSkill, SkillDefinition, SkillList, UpdateSkill};
use resources::threads::run_blocking;
use store::{CreateSkillError, CustomSkill};
use tools::skills::{ExportError, Skill, Skills, archive};

use super::{Agent, AgentError};

impl Agent {
    /// The skills of the platform and the user's own, sorted by name.
    pub async fn skills(&self) -> Result<SkillList, AgentError> {
        let skills = self.available_skills();
        Ok(SkillList { skills: self.read(move |_| skills.all()).await? })
    }

    /// A complete skill.
    pub async fn skill(&self, name: &str) -> Result<skills::Skill, AgentError> {
        let skill = self.find_skill(name).await?;
        let now = self.services.clock.now();
        let response = run_blocking(move || skill.into_contract(now)).await.ok_or(AgentError::Stopping)?;
        response.ok_or(AgentError::UnknownSkill)
    }

    /// Creates a skill owned by the user.
    pub async fn create_skill(&self, create: CreateSkill) -> Result<skills::Skill, AgentError> {
        let CreateSkill { name, description, category, prompt, capabilities, scripts } = create;
        let definition = SkillDefinition { description, category, prompt, capabilities, scripts }
            .validate()
            .map_err(|error| AgentError::Invalid(error.to_string()))?;
        if self.services.snapshots.current().skills.iter().any(|skill| skill.name == name.as_str()) {
            return Err(AgentError::SkillExists(name));
        }
        let created_at = self.services.clock.now();
        let skill = CustomSkill { name, definition, created_at, updated_at: created_at };
        let created = skill.clone();
        match self.brain.write(move |rows| rows.create_skill(&created)).await? {
            Ok(()) => self.to_response(skill),
            Err(CreateSkillError::NameTaken) => Err(AgentError::SkillExists(skill.name)),
            Err(reason @ CreateSkillError::TooMany) => Err(AgentError::Invalid(reason.to_string())),
        }
    }

    /// Changes a skill owned by the user.
    pub async fn update_skill(&self, name: &str, update: UpdateSkill) -> Result<skills::Skill, AgentError> {
        self.custom_skill(name).await?;
        if update.name.as_ref().is_some_and(|other| other != name) {
            let message = "`name`: must be the name in the path: a skill cannot be renamed, only deleted and created \
                           again";
            return Err(AgentError::Invalid(message.into()));
        }
        let (name, at) = (name.to_owned(), self.services.clock.now());
        let updated = self.brain.write(move |rows| rows.update_skill(&name, &update, at)).await?;
        let updated = updated.ok_or(AgentError::UnknownSkill)?;
        let skill = updated.map_err(|error| AgentError::Invalid(error.to_string()))?;
        self.retire_skill_dir(skill.name.clone()).await;
        self.to_response(skill)
    }

    /// Deletes a skill owned by the user.
    pub async fn delete_skill(&self, name: &str) -> Result<(), AgentError> {
        let CustomSkill { name, .. } = self.custom_skill(name).await?;
        let deleted_name = name.clone();
        if !self.delete_and_erase(move |rows| rows.delete_skill(deleted_name.as_str())).await? {
            return Err(AgentError::UnknownSkill);
        }
        self.retire_skill_dir(name).await;
        Ok(())
    }

    /// A tar archive of a skill's folder.
    pub async fn export_skill(&self, name: &str) -> Result<Vec<u8>, AgentError> {
        let skill = self.find_skill(name).await?;
        let archived = run_blocking(move || archive(&skill)).await.ok_or(AgentError::Stopping)?;
        archived.map_err(|error| match error {
            ExportError::TooLarge => AgentError::Invalid(error.to_string()),
            ExportError::Io(error) => AgentError::Unreadable(format!("a file of a skill: {error}")),
        })
    }

    /// The skills of the current catalog and the user's own.
    pub(super) fn available_skills(&self) -> Skills {
        Skills::new(self.services.snapshots.current().skills.clone(), self.brain.clone())
    }

    /// Finds the skill called `name`.
    pub(super) async fn find_skill(&self, name: &str) -> Result<Skill, AgentError> {
        let (skills, name) = (self.available_skills(), name.to_owned());
        self.read(move |_| skills.find(&name)).await?.ok_or(AgentError::UnknownSkill)
    }

    /// Finds the skill called `name`, which must be the user's own.
    async fn custom_skill(&self, name: &str) -> Result<CustomSkill, AgentError> {
        match self.find_skill(name).await? {
            Skill::Custom(skill) => Ok(*skill),
            Skill::Platform(_) => Err(AgentError::PlatformSkill),
        }
    }

    /// Invalidates the directory of a skill that was changed or deleted, so that no program finds the old one.
    async fn retire_skill_dir(&self, name: SkillName) {
        let services = self.services.clone();
        run_blocking(move || services.skill_dirs.invalidate(name.as_str())).await;
    }

    fn to_response(&self, skill: CustomSkill) -> Result<skills::Skill, AgentError> {
        Skill::Custom(Box::new(skill))
            .into_contract(self.services.clock.now())
            .ok_or(AgentError::UnknownSkill)
    }
}
